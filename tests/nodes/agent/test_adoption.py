"""A container that was started by an agent that died right after: settled by the next one, or ended free of charge."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from nodes.agent import links, settling
from nodes.agent.actor import _AgentStops
from nodes.agent.holderbox import holder_body
from nodes.agent.namespaces import network_of
from tests.nodes.agent.test_unsettled import _short_retries  # noqa: F401  # a fixture
from tests.nodes.agent.world import World, until
from tests.nodes.agent.written_holders import ADDRESS, ID, NAME, WrittenHolders

HERE = network_of("self")
ELSEWHERE = HERE + 1


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes whose containers got a host name: none does really, it would be this machine's."""
    seen: list[int] = []

    def note(pid: int, kind: str, _work: Callable[[], None]) -> None:
        assert kind == "uts"
        seen.append(pid)

    monkeypatch.setattr(settling, "inside", note)
    return seen


@pytest.fixture
def holders(world: World, named: list[int]) -> WrittenHolders:
    """Of a node whose containers are all in the network of this test."""
    world.stop()
    world.engine.pid = os.getpid()
    world.holders = made = WrittenHolders(world.engine, world.directory, HERE)
    world.start()
    return made


def die_after_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Order a lease; the agent dies when its container has started, before it did anything more."""
    start, died = world.engine.start, Event()

    def dying(container: str) -> None:
        start(container)
        died.set()
        raise _AgentStops

    monkeypatch.setattr(world.engine, "start", dying)
    world.want()
    until(died.is_set)
    world.stop()
    monkeypatch.setattr(world.engine, "start", start)


def test_a_lease_that_joins_a_holder_gets_its_host_name_before_it_is_called_started(
    world: World, holders: WrittenHolders, named: list[int]
) -> None:
    world.proof.gate.clear()
    world.want()
    world.portal.wait_event("ls-a", "started")
    assert named == [os.getpid()]
    world.proof.gate.set()
    world.portal.wait_event("ls-a", "ready")
    assert holders.distrusted == ""


def test_what_an_agent_did_not_come_to_after_the_start_is_done_before_the_proof(
    world: World, holders: WrittenHolders, named: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    die_after_start(world, monkeypatch)
    assert (named, world.portal.events("ls-a")) == ([], ["starting"])
    world.proof.gate.clear()
    world.start()
    world.portal.wait_event("ls-a", "started")
    assert named == [os.getpid()]
    world.proof.gate.set()
    world.portal.wait_event("ls-a", "ready")
    assert (world.engine.calls.count("start"), holders.distrusted) == (1, "")


def test_a_container_in_another_network_than_its_holders_is_ended_before_anything_is_proven(
    world: World, holders: WrittenHolders, named: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    holders.network = ELSEWHERE
    die_after_start(world, monkeypatch)
    world.start()
    world.portal.wait_event("ls-a", "cleaned")
    assert world.portal.report("ls-a", "failed")["failure"] == "failed_launch"
    assert not {"started", "ready"} & set(world.portal.events("ls-a"))
    assert (named, world.engine.boxes) == ([], {})
    assert "another network" in holders.distrusted


def test_a_start_without_an_answer_is_settled_as_well(world: World, holders: WrittenHolders, named: list[int]) -> None:
    world.engine.lost = {"start": 1}
    world.want()
    world.portal.wait_event("ls-a", "ready")
    assert (named, world.engine.calls.count("start")) == ([os.getpid()], 1)
    assert holders.distrusted == ""


def test_a_container_that_joined_what_nobody_knows_is_ended(
    world: World, holders: WrittenHolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_after_start(world, monkeypatch)
    shutil.rmtree(world.directory / "holders")
    world.start()
    world.portal.wait_event("ls-a", "cleaned")
    assert world.portal.report("ls-a", "failed")["failure"] == "failed_launch"
    assert "ready" not in world.portal.events("ls-a")
    assert holders.distrusted == ""


@pytest.mark.parametrize("entry", ["", f"{NAME} {ADDRESS}"])
def test_a_holder_whose_network_was_not_written_down_is_asked_for_it(
    world: World, holders: WrittenHolders, named: list[int], entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_after_start(world, monkeypatch)
    written = world.directory / "holders" / "lessor-ls-a-1" / "holder"
    written.write_text(entry)
    monkeypatch.setattr(links, "address_of", lambda _pid: ADDRESS)
    body = holder_body("image", "nd-test", "n" * 64)
    world.engine.boxes[NAME] = {
        "Id": ID, "Name": f"/{NAME}", "Config": {"Labels": body["Labels"]}, "HostConfig": body["HostConfig"],
        "State": {"Status": "running", "Pid": os.getpid(), "ExitCode": 0},
    }  # fmt: skip
    world.start()
    world.portal.wait_event("ls-a", "ready")
    assert named == [os.getpid()]


def test_a_container_on_a_network_of_its_own_is_left_to_the_engine(
    world: World, named: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    die_after_start(world, monkeypatch)
    world.start()
    world.portal.wait_event("ls-a", "ready")
    assert named == []


def test_the_book_keeps_the_network_over_a_restart(tmp_path: Path, world: World) -> None:
    WrittenHolders(world.engine, tmp_path, 42).take("lessor-ls-a-1", "ls-a")
    found = WrittenHolders(world.engine, tmp_path, 7).book.read("lessor-ls-a-1")
    assert found is not None
    assert (found.network, found.lives) == (42, False)
