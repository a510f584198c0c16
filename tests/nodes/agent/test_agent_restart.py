"""What an agent makes of what an earlier one has left."""

import json
import threading

import pytest

from nodes.agent.actor import _AgentStops
from nodes.agent.config import write_private
from nodes.agent.store import LeaseRecord, Store
from tests.nodes.agent.world import GPU, World, until


def test_a_restart_leaves_a_running_lease_alone_and_goes_on_watching_it(world: World) -> None:
    world.running()
    world.stop()
    world.engine.calls.clear()
    world.start()
    world.portal.wait_for(lambda: world.phase() == "running", "adopted")
    pulls = len(world.portal.pulls)
    world.portal.wait_for(lambda: len(world.portal.pulls) > pulls + 1, "pulls of the new agent")
    assert not [call for call in world.engine.calls if call in {"create", "start", "remove"} or "kill" in call]
    world.engine.exit("lessor-ls-a-1", 0)
    world.portal.wait_event("ls-a", "cleaned")


def test_an_agent_that_died_during_a_launch_finishes_it(world: World) -> None:
    world.proof.gate.clear()
    world.want()
    world.portal.wait_event("ls-a", "started")
    world.stop()
    world.proof.gate.set()
    world.start()
    world.portal.wait_event("ls-a", "ready")
    assert world.engine.calls.count("create") == 1


def test_a_launch_that_is_not_wanted_any_more_after_a_restart_is_cleaned_not_finished(world: World) -> None:
    world.proof.gate.clear()
    world.want()
    world.portal.wait_event("ls-a", "started")
    world.stop()
    del world.portal.leases["ls-a"]
    world.proof.gate.set()
    world.start()
    world.portal.wait_event("ls-a", "cleaned")
    assert "ready" not in world.portal.events("ls-a")


def test_a_container_of_ours_that_nobody_wants_is_stopped_and_cleaned(world: World) -> None:
    world.running()
    world.stop()
    for path in (world.directory / "leases").iterdir():
        path.unlink()
    del world.portal.leases["ls-a"]
    world.start()
    world.portal.wait_event("ls-a", "cleaned")
    assert world.engine.boxes == {}


def test_a_damaged_record_does_not_keep_the_agent_from_starting(world: World) -> None:
    world.running()
    world.stop()
    write_private(world.directory / "leases" / "ls-a.json", "{")
    world.start()
    world.portal.wait_for(lambda: world.phase() == "running", "adopted by its labels")
    world.portal.stop("ls-a")
    world.portal.wait_event("ls-a", "cleaned")


def test_left_over_volumes_and_networks_are_removed_at_the_next_start(world: World) -> None:
    world.stop()
    (world.directory / "volumes" / "lessor-ls-gone-3").mkdir()
    world.engine.nets.add("lessor-ls-gone-3")
    world.start()
    assert list((world.directory / "volumes").iterdir()) == []
    assert world.engine.nets == set()


# An agent that dies at any step, as far as this can be seen without a process of its own: test_rig_bad_days.py does it
# with SIGKILL on a real engine.

PHASES = ("starting", "started", "running", "stopping", "stopped", "cleaning")


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("phase", PHASES)
def test_whatever_step_an_agent_dies_at_the_next_one_goes_on_from_there(
    world: World, phase: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, died = Store.save, threading.Event()

    def dying(store: Store, record: LeaseRecord) -> None:
        if died.is_set():
            raise _AgentStops  # the dead write nothing more
        if moment == "after":
            save(store, record)
        if record.phase == phase:
            died.set()
            raise _AgentStops
        if moment == "before":
            save(store, record)

    monkeypatch.setattr(Store, "save", dying)
    world.want()
    until(lambda: died.is_set() or "ready" in world.portal.events("ls-a"))
    if not died.is_set():
        world.portal.stop("ls-a")
    until(died.is_set)
    world.stop()
    monkeypatch.setattr(Store, "save", save)
    world.start()
    if phase in PHASES[:3]:
        world.portal.wait_event("ls-a", "ready")
        assert list(world.engine.boxes) == ["lessor-ls-a-1"]
        world.portal.stop("ls-a")
    world.portal.wait_event("ls-a", "cleaned")
    assert "failed" not in world.portal.events("ls-a")
    assert world.engine.calls.count("start") == 1
    assert [call for call in world.engine.calls if call.startswith("kill")] == ["kill SIGTERM"]
    assert (world.engine.boxes, world.engine.nets) == ({}, set())
    until(lambda: not list((world.directory / "leases").iterdir()))


@pytest.mark.parametrize("event", ["exited", "deadline", "failed"])
def test_why_a_lease_ended_is_told_though_the_agent_died_before_the_portal_heard_it(world: World, event: str) -> None:
    if event == "failed":
        world.proof.gate.clear()
    world.want(deadline_s=2 if event == "deadline" else None)
    world.portal.wait_event("ls-a", "started" if event == "failed" else "ready")
    world.portal.status = 503
    if event != "deadline":
        world.engine.exit("lessor-ls-a-1", 3)
    until(lambda: world.engine.boxes == {})
    world.stop()
    world.portal.status = 0
    world.start()
    world.portal.wait_event("ls-a", "cleaned")
    assert event in world.portal.events("ls-a")


def test_ready_is_told_though_the_agent_died_before_the_portal_heard_it(world: World) -> None:
    world.proof.gate.clear()
    world.want()
    world.portal.wait_event("ls-a", "started")
    world.portal.status = 503
    world.proof.gate.set()
    until(lambda: world.phase() == "running")
    world.stop()
    world.portal.status = 0
    world.start()
    assert world.portal.wait_event("ls-a", "ready")["evidence"] == {"devices_seen": [GPU]}
    path = world.directory / "leases" / "ls-a.json"
    until(lambda: json.loads(path.read_text())["unsaid"] == [])
