"""Placement over generated fleets: what must hold for every snapshot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rental.placement import FREE, GpuView, NodeView, Reason, Request, Snapshot, place
from rental.placement.whole import SENTENCES

STATES = [FREE, *SENTENCES]


@st.composite
def fleets(draw: st.DrawFn) -> Snapshot:
    ids = iter(range(1, 10_000))
    nodes = []
    for index in range(draw(st.integers(0, 6))):
        states = draw(st.lists(st.sampled_from(STATES), min_size=1, max_size=8))
        gpus = tuple(GpuView(next(ids), f"00000000:{n + 1:02X}:00.0", state) for n, state in enumerate(states))
        nodes.append(NodeView(id=f"nd-{index}", name=draw(st.sampled_from("abc")), gpus=gpus))
    return Snapshot(tuple(nodes))


def free_on(node: NodeView) -> set[int]:
    return {gpu.id for gpu in node.gpus if gpu.state == FREE}


@given(fleets(), st.integers(1, 9))
def test_a_decision_takes_free_gpus_of_one_node_and_no_other_node_fits_better(fleet: Snapshot, count: int) -> None:
    decision = place(fleet, Request(count))
    fitting = {node.id: len(free_on(node)) for node in fleet.nodes if len(free_on(node)) >= count}
    if not fitting:
        assert decision.node_id is None
        assert decision.gpu_ids == ()
        assert decision.reasons
        return
    chosen = next(node for node in fleet.nodes if node.id == decision.node_id)
    assert len(decision.gpu_ids) == len(set(decision.gpu_ids)) == count
    assert set(decision.gpu_ids) <= free_on(chosen)
    assert fitting[chosen.id] == min(fitting.values())
    assert decision.reasons == ()


@given(fleets(), st.integers(1, 9), st.randoms(use_true_random=False))
def test_the_order_in_which_the_fleet_was_read_changes_nothing(fleet: Snapshot, count: int, random: object) -> None:
    shuffled = list(fleet.nodes)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    mixed = Snapshot(tuple(replace(node, gpus=tuple(reversed(node.gpus))) for node in shuffled))
    assert place(mixed, Request(count)) == place(fleet, Request(count))


def node(name: str, *states: str) -> NodeView:
    base = 100 * (ord(name) - ord("a") + 1)
    return NodeView(name, name, tuple(GpuView(base + n, f"{n:02d}", state) for n, state in enumerate(states)))


def test_the_smallest_group_that_fits_is_used_and_ties_go_by_name() -> None:
    fleet = Snapshot((node("c", *[FREE] * 8), node("b", *[FREE] * 2), node("a", FREE, "leased", FREE)))
    assert place(fleet, Request(2)).node_id == "a"
    assert place(fleet, Request(2)).gpu_ids == (100, 102)
    assert place(fleet, Request(3)).node_id == "c"


def test_reasons_are_words() -> None:
    assert place(Snapshot(()), Request(1)).reasons == (
        Reason("none_installed", 0, "there is no such GPU in the fleet"),
    )
    fleet = Snapshot((node("a", *[FREE] * 4, *["leased"] * 4), node("b", "draining", "silent")))
    assert [reason.text for reason in place(fleet, Request(8)).reasons] == [
        "the largest free group is 4",
        "4 are leased",
        "1 is on a node that takes no new leases",
        "1 is on a node that does not answer",
    ]
    assert place(fleet, Request(9)).reasons[0].text == "the largest node has 8 of them"


def test_zero_gpus_is_no_request() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Request(0)
