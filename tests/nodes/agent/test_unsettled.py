"""An engine that carries something out and does not say so: looked at again, never done twice, never called failed."""

import pytest

from nodes.agent import actor, stopping
from tests.nodes.agent.world import World, until


@pytest.fixture(autouse=True)
def _short_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor, "ENGINE_RETRY_S", 0.05)
    monkeypatch.setattr(stopping, "RETRY_S", 0.05)


def kills(world: World) -> list[str]:
    return [call for call in world.engine.calls if call.startswith("kill")]


@pytest.mark.parametrize("call", ["network_create", "create", "start"])
def test_a_launch_step_without_an_answer_ends_in_one_running_container(world: World, call: str) -> None:  # case C09
    world.engine.lost = {call: 1}
    world.running()
    assert world.portal.events("ls-a")[-2:] == ["started", "ready"]
    assert "failed" not in world.portal.events("ls-a")
    assert list(world.engine.boxes) == ["lessor-ls-a-1"]
    assert world.engine.calls.count("start") == 1


def test_a_container_that_ran_is_not_started_again_because_its_start_had_no_answer(world: World) -> None:  # case C09
    world.engine.lost, world.engine.exits_at_once = {"start": 1}, 3
    world.proof.gate.clear()  # as with a container that nobody can log into
    world.want()
    world.portal.wait_event("ls-a", "cleaned")
    assert "exit code 3" in world.portal.report("ls-a", "failed")["detail"]
    assert (world.engine.calls.count("create"), world.engine.calls.count("start")) == (1, 1)


def test_an_agent_that_comes_back_to_a_silent_engine_starts_nothing_twice(world: World) -> None:  # case C09
    world.proof.gate.clear()
    world.want()
    world.portal.wait_event("ls-a", "started")
    world.stop()
    world.engine.down = True
    world.start()
    pulls = len(world.portal.pulls)
    world.portal.wait_for(lambda: len(world.portal.pulls) > pulls + 2, "orders for the silent engine")
    world.engine.down = False
    world.proof.gate.set()
    world.portal.wait_event("ls-a", "ready")
    assert (world.engine.calls.count("create"), world.engine.calls.count("start")) == (1, 1)


def test_a_launch_on_a_silent_engine_can_be_cancelled(world: World) -> None:  # case C09
    world.engine.down = True
    world.want()
    until(lambda: world.phase() == "starting")
    world.portal.stop("ls-a")
    until(lambda: world.phase() == "stopping")
    world.engine.down = False
    world.portal.wait_event("ls-a", "cleaned")
    assert "failed" not in world.portal.events("ls-a")
    assert world.engine.boxes == {}


def test_a_stop_without_an_answer_is_not_asked_for_twice(world: World) -> None:  # case C09
    world.running()
    world.engine.ignores_term, world.engine.lost = True, {"kill": 1}
    world.portal.stop("ls-a")
    until(lambda: bool(kills(world)) and world.engine.calls[-1] == "inspect")
    world.engine.exit("lessor-ls-a-1", 0)
    world.portal.wait_event("ls-a", "cleaned")
    assert kills(world) == ["kill SIGTERM"]
    assert world.portal.report("ls-a", "stopped")["evidence"] == {"exit_code": 0, "killed": False}


def test_an_agent_that_dies_during_the_grace_neither_asks_again_nor_gives_more(world: World) -> None:
    world.engine.ignores_term = True
    world.want(stop_grace_s=2)
    world.portal.wait_event("ls-a", "ready")
    world.portal.stop("ls-a")
    until(lambda: bool(kills(world)))
    world.stop()
    world.start()
    world.portal.wait_event("ls-a", "cleaned")
    assert kills(world) == ["kill SIGTERM", "kill SIGKILL"]
    assert world.portal.report("ls-a", "stopped")["evidence"] == {"exit_code": 137, "killed": True}


def test_a_stop_goes_to_the_container_and_not_to_its_name(world: World) -> None:  # case E03
    world.running()
    world.engine.ignores_term = True
    world.portal.stop("ls-a")
    until(lambda: bool(kills(world)))
    box = world.engine.boxes["lessor-ls-a-1"]
    fresh = {**box, "Id": "f" * 64, "State": {**box["State"]}}
    world.engine.boxes["lessor-ls-a-1"] = fresh  # another of the same name, as if the first had been replaced
    world.portal.wait_event("ls-a", "stopped")
    assert fresh["State"]["Status"] == "running"
    assert kills(world) == ["kill SIGTERM"]
