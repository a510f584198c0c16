"""Leases whose image has to be fetched first."""

import pytest

from nodes.agent import actor
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


def test_a_pull_that_moves_without_new_words_is_told_again_and_one_that_stands_still_is_not(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:  # case C03
    monkeypatch.setattr(actor, "PROGRESS_S", 0.05)
    monkeypatch.setattr(actor, "SAME_PROGRESS_S", 0.1)
    world.engine.speaks = True
    world.want(image="far:1")
    world.portal.wait_for(lambda: told(world).count("1 of 2 layers") > 2, "the same words again")
    world.engine.speaks = False
    monkeypatch.setattr(actor, "SAME_PROGRESS_S", 0.0)
    pulls = len(world.portal.pulls)
    world.portal.wait_for(lambda: len(world.portal.pulls) > pulls + 1, "some time")
    before = len(told(world))
    world.portal.wait_for(lambda: len(world.portal.pulls) > pulls + 4, "more time")
    assert len(told(world)) == before
    world.engine.pull_gate.set()
    world.portal.wait_event("ls-a", "ready")


def told(world: World) -> list[str]:
    return [report["detail"] for report in list(world.portal.reports) if report["event"] == "pulling"]
