"""Leases whose image has to be fetched first."""

from tests.nodes.agent.world import World


def test_a_stop_does_not_wait_for_the_pull(world: World) -> None:  # case C03, case I06
    world.want(image="far:1")
    world.portal.wait_event("ls-a", "pulling")
    world.portal.stop("ls-a")
    world.portal.wait_event("ls-a", "cleaned", seconds=20)
    assert not world.engine.pull_gate.is_set()
    assert "create" not in world.engine.calls


def test_leases_of_one_image_share_its_pull(world: World) -> None:  # case C03
    for lease_id in ("ls-a", "ls-b", "ls-c"):
        world.want(lease_id, image="far:1")
    world.portal.wait_for(lambda: all("pulling" in world.portal.events(i) for i in ("ls-a", "ls-b", "ls-c")), "pulls")
    world.engine.pull_gate.set()
    for lease_id in ("ls-a", "ls-b", "ls-c"):
        world.portal.wait_event(lease_id, "ready")
    assert world.engine.pulls == ["far:1"]


def test_who_leaves_a_shared_pull_does_not_end_it_for_the_others(world: World) -> None:  # case C03
    for lease_id in ("ls-a", "ls-b"):
        world.want(lease_id, image="far:1")
        world.portal.wait_event(lease_id, "pulling")
    world.portal.stop("ls-a")
    world.portal.wait_event("ls-a", "cleaned")
    world.engine.pull_gate.set()
    world.portal.wait_event("ls-b", "ready")
    assert world.engine.pulls == ["far:1"]


def test_an_image_that_does_not_exist_ends_failed_image(world: World) -> None:
    world.engine.pull_gate.set()
    world.want(image="nobody/nothing:1")
    world.portal.wait_event("ls-a", "cleaned")
    assert world.portal.report("ls-a", "failed")["failure"] == "failed_image"
