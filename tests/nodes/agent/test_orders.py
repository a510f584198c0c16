"""Orders on their way to an actor: what heartbeats say meanwhile, and an engine that hangs keeps nobody waiting."""

from collections.abc import Callable
from typing import Any

import pytest

from nodes.agent.actor import Actor
from tests.nodes.agent.fake_portal import lease
from tests.nodes.agent.world import GPU, OTHER_GPU, World, until


def listed(world: World) -> list[tuple[str, str]]:
    """Id and phase of each lease in a heartbeat made now."""
    records = world.reconciler.list_for_heartbeat()
    assert records is not None
    return [(record.lease_id, record.phase) for record in records]


def before_answering_desired(world: World, act: Callable[[], None]) -> None:
    """Do something once after the portal has looked up an order and before its answer arrives."""
    answer, todo = world.portal.answer, [act]

    def late(method: str, path: str, token: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        status, content = answer(method, path, token, body)
        if method == "GET" and content.get("leases") and todo:
            todo.pop()()
        return status, content

    world.portal.answer = late  # type: ignore[method-assign]  # the only way in between the two


def test_a_heartbeat_lists_a_lease_whose_actor_has_not_begun(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Actor] = []
    monkeypatch.setattr(Actor, "begin", lambda actor: begun.append(actor))  # noqa: PLW0108  # must bind as a method
    world.want()
    until(lambda: bool(begun))
    assert listed(world) == [("ls-a", "starting")]
    monkeypatch.undo()
    begun[0].begin()
    world.portal.wait_event("ls-a", "ready")


def test_an_order_that_crossed_a_heartbeat_without_it_is_asked_for_again(world: World) -> None:
    seen: list[object] = []
    before_answering_desired(world, lambda: seen.append(world.reconciler.list_for_heartbeat()))
    world.want()
    world.portal.wait_event("ls-a", "ready")
    assert seen == [()]
    assert "ls-a" in world.portal.pulls  # asked for by name: the whole answer began nothing
    assert world.engine.calls.count("create") == 1


def test_no_heartbeat_speaks_of_leases_before_the_engine_was_seen(world: World) -> None:
    world.stop()
    world.engine.down = True
    world.start()
    assert world.reconciler.list_for_heartbeat() is None
    world.engine.down = False
    until(lambda: world.reconciler.list_for_heartbeat() == ())


def test_an_engine_that_does_not_list_its_containers_keeps_no_order_waiting(world: World) -> None:  # case C09
    world.engine.hangs = {"containers"}
    until(lambda: world.engine.calls[-1].startswith("containers"))
    world.want()
    world.portal.wait_event("ls-a", "ready", seconds=10)
    world.portal.stop("ls-a")
    world.portal.wait_event("ls-a", "cleaned", seconds=10)
    world.engine.thaw.set()


def test_a_lease_whose_start_hangs_keeps_no_other_waiting(world: World) -> None:  # case C09
    world.engine.hangs = {"start"}
    world.want("ls-a")
    until(lambda: "start" in world.engine.calls)
    world.engine.hangs = set()
    world.portal.want(lease("ls-b", [OTHER_GPU], "here:1"))
    world.portal.wait_event("ls-b", "ready", seconds=10)
    world.engine.thaw.set()
    world.portal.wait_event("ls-a", "ready")


def test_a_message_that_comes_twice_or_for_a_dead_generation_changes_nothing(world: World) -> None:
    world.portal.want(lease("ls-a", [GPU], "here:1", generation=2))
    for _ in range(20):
        world.reconciler.wake("ls-a")
    world.portal.wait_event("ls-a", "ready")
    old = lease("ls-a", [GPU], "here:1", generation=1)
    world.portal.stop("ls-a")
    world.portal.wait_event("ls-a", "cleaned")
    world.portal.want(old)
    for _ in range(20):
        world.reconciler.wake("ls-a")
        world.reconciler.wake("ls-unknown")
    pulls = len(world.portal.pulls)
    world.portal.wait_for(lambda: len(world.portal.pulls) > pulls + 3, "more pulls")
    assert (world.engine.calls.count("create"), world.engine.calls.count("start")) == (1, 1)
    assert world.engine.boxes == {}
