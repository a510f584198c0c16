"""What an agent makes of what an earlier one has left."""

from nodes.agent.config import write_private
from tests.nodes.agent.world import World


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
