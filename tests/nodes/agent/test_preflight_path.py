"""The preflight goes the way of a lease: beside a holder where the node has them, looked at and named like one."""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from nodes.agent import preflight, settling
from nodes.agent.config import Options
from nodes.agent.gateway_link import GatewayAnswer, GatewayLink
from nodes.agent.gpus import GpuFacts, Gpus
from nodes.agent.holding import Holders, NoHolders
from nodes.agent.hostconfig import NodeFacts
from nodes.agent.namespaces import network_of
from nodes.agent.preflight import BUNDLE_FILES, NAME, Preflight
from tests.nodes.agent.fake_engine import FakeEngine
from tests.nodes.agent.fake_portal import NODE_ID
from tests.nodes.agent.world import GPU, NoRules, PlainVolumes
from tests.nodes.agent.written_holders import ID, WrittenHolders

HERE = network_of("self")


class OneCard:
    """A node with one healthy GPU."""

    def inventory(self) -> tuple[GpuFacts, ...]:
        return (GpuFacts(GPU, "H100", 1, 0, "0", None, None, mig_mode=False, healthy=True, fault=""),)


class OpenGateway:
    """A gateway that answers."""

    def ask(self, _lease_id: str) -> GatewayAnswer:
        return GatewayAnswer(frozenset(), "ssh-ed25519 AAAA")


@pytest.fixture
def engine() -> FakeEngine:
    """Whose containers are in the network of this test and see the right GPU."""
    made = FakeEngine()
    made.pid, made.output = os.getpid(), json.dumps({"source": "nvml", "devices": [GPU]})
    return made


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes whose containers got a host name: none does really, it would be this machine's."""
    seen: list[int] = []

    def note(pid: int, _kind: str, _work: Callable[[], None]) -> None:
        seen.append(pid)

    monkeypatch.setattr(settling, "inside", note)
    return seen


def run(engine: FakeEngine, holders: Holders, directory: Path) -> tuple[bool, dict[str, Any]]:
    """Whether all is well, and the last check."""
    for name in BUNDLE_FILES:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).touch()
    checks = Preflight(
        options=Options(bundle_dir=directory), engine=engine, gpus=cast(Gpus, OneCard()),
        volumes=PlainVolumes(directory / "volumes"), rules=NoRules(resolv_confs=()),
        gateway=cast(GatewayLink, OpenGateway()), holders=holders, leased=frozenset,
        node_facts=lambda: NodeFacts(NODE_ID, "device_request", directory, 1024, memlock=False),
    )  # fmt: skip
    ok, results = checks.run()
    return ok, results[-1]


def modes(engine: FakeEngine) -> list[str]:
    """Remember the networks of containers as they are made."""
    seen: list[str] = []
    engine.tamper = lambda box: seen.append(box["HostConfig"]["NetworkMode"])
    return seen


def test_a_node_with_holders_proves_one(engine: FakeEngine, named: list[int], tmp_path: Path) -> None:
    seen, holders = modes(engine), WrittenHolders(engine, tmp_path, HERE)
    ok, check = run(engine, holders, tmp_path)
    assert (ok, seen, named) == (True, [f"container:{ID}"], [os.getpid()])
    assert check["detail"] == f"{GPU} seen by nvml inside a container in a network that was ready"
    assert (engine.boxes, engine.nets, holders.book.open()) == ({}, set(), {})


def test_a_node_without_holders_proves_a_network_of_its_own(
    engine: FakeEngine, named: list[int], tmp_path: Path
) -> None:
    seen = modes(engine)
    ok, check = run(engine, NoHolders(), tmp_path)
    assert (ok, seen, named) == (True, [NAME], [])
    assert check["detail"].endswith("a network of its own")
    assert (engine.boxes, engine.nets) == ({}, set())


def test_a_holder_path_that_leads_elsewhere_is_found_before_anything_is_sold(
    engine: FakeEngine, named: list[int], tmp_path: Path
) -> None:
    holders = WrittenHolders(engine, tmp_path, HERE + 1)
    ok, check = run(engine, holders, tmp_path)
    assert (ok, check["name"], check["ok"]) == (False, "container", False)
    assert check["detail"] == "The node could not give the lease its network."
    assert (named, engine.boxes, holders.book.open()) == ([], {}, {})
    assert "another network" in holders.distrusted


def test_a_container_that_cannot_join_a_holder_leaves_nothing(engine: FakeEngine, tmp_path: Path) -> None:
    holders = WrittenHolders(engine, tmp_path, HERE)
    engine.start_error = f"cannot join network of a non running container: {ID}"
    ok, check = run(engine, holders, tmp_path)
    assert (ok, check["detail"]) == (False, engine.start_error)
    assert (engine.boxes, holders.book.open()) == ({}, {})


def test_the_probe_begins_when_the_host_name_is_there(
    engine: FakeEngine, named: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies: list[Any] = []
    create = engine.create

    def noting(name: str, body: Mapping[str, object]) -> str:
        bodies.append(body)
        return create(name, body)

    monkeypatch.setattr(engine, "create", noting)
    run(engine, WrittenHolders(engine, tmp_path, HERE), tmp_path)
    [body] = bodies
    assert body["Entrypoint"][:3] == ["/.lease/bin/busybox", "sh", "-c"]
    assert f"= {preflight.LEASE_ID} ]; do" in body["Entrypoint"][3]
    assert body["Entrypoint"][3].endswith("exec /.lease/bin/probe")
