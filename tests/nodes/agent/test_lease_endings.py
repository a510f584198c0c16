"""How leases end: stop, exit, deadline, silence, an engine that is away; and what cleaning finds."""

from tests.nodes.agent.fake_portal import lease
from tests.nodes.agent.world import GPU, OTHER_GPU, World, until


def test_sigkill_follows_when_the_grace_is_over(world: World) -> None:  # case E01
    world.engine.ignores_term = True
    world.want(stop_grace_s=0)
    world.portal.wait_event("ls-a", "ready")
    world.portal.stop("ls-a")
    world.portal.wait_event("ls-a", "cleaned")
    assert [call for call in world.engine.calls if call.startswith("kill")] == ["kill SIGTERM", "kill SIGKILL"]
    assert world.portal.report("ls-a", "stopped")["evidence"] == {"exit_code": 137, "killed": True}


def test_an_exit_is_told_with_its_code(world: World) -> None:
    world.running()
    world.engine.exit("lessor-ls-a-1", 9)
    world.portal.wait_event("ls-a", "cleaned")
    assert world.portal.report("ls-a", "exited")["evidence"] == {"exit_code": 9, "oom_killed": False}


def test_an_order_to_stop_what_was_never_here_is_answered_with_cleaned(world: World) -> None:
    world.want(want="stop")
    world.portal.wait_event("ls-a", "cleaned")
    assert world.portal.events("ls-a") == ["cleaned"]


def test_the_deadline_ends_a_lease_while_the_portal_is_away(world: World) -> None:
    world.want(deadline_s=1)
    world.portal.wait_event("ls-a", "ready")
    world.portal.status = 503
    until(lambda: world.engine.boxes == {})
    world.portal.status = 0
    world.portal.wait_event("ls-a", "cleaned")
    assert world.portal.events("ls-a")[-3:] == ["deadline", "stopped", "cleaned"]


def test_silence_of_the_portal_ends_a_lease_by_the_agents_own_clock(world: World) -> None:
    world.stop()
    world.silence_s = 2.0
    world.start()
    world.running()
    world.portal.status = 503
    until(lambda: world.engine.boxes == {})
    world.portal.status = 0
    world.portal.wait_event("ls-a", "cleaned")
    assert "not heard" in world.portal.report("ls-a", "stopped")["detail"]


def test_a_revoked_node_asks_no_more_and_keeps_what_runs(world: World) -> None:
    world.running()
    world.portal.status = 401
    world.portal.wait_for(lambda: world.portal.refused > 0, "a refused call")
    world.portal.status = 0
    pulls = len(world.portal.pulls)
    world.reconciler.wake("")
    world.engine.calls.clear()
    until(lambda: world.engine.calls.count("inspect") > 2)
    assert world.phase() == "running"
    assert (len(world.portal.pulls), world.portal.refused) == (pulls, 1)


def test_reports_wait_for_the_portal_and_keep_their_order(world: World) -> None:
    world.running()
    world.portal.status = 500
    world.engine.exit("lessor-ls-a-1", 1)
    until(lambda: world.engine.boxes == {})
    world.portal.status = 0
    world.portal.wait_event("ls-a", "cleaned")
    assert world.portal.events("ls-a")[-3:] == ["exited", "stopped", "cleaned"]


def test_an_engine_that_goes_away_does_not_end_a_lease(world: World) -> None:  # case C09
    world.running()
    world.engine.down = True
    world.engine.calls.clear()
    until(lambda: world.engine.calls.count("inspect") > 3)
    assert world.phase() == "running"
    world.engine.down = False
    world.portal.stop("ls-a")
    world.portal.wait_event("ls-a", "cleaned")


def test_cleaning_waits_for_an_engine_that_is_away(world: World) -> None:  # case C09
    world.running()
    world.engine.down = True
    world.portal.stop("ls-a")
    world.portal.wait_for(lambda: world.phase() == "stopping", "stopping")
    world.engine.down = False
    world.portal.wait_event("ls-a", "cleaned")
    assert world.engine.boxes == {}


def test_memory_that_stays_on_a_gpu_quarantines_that_gpu_only(world: World) -> None:
    world.portal.want(lease("ls-a", [GPU, OTHER_GPU], "here:1"))
    world.portal.wait_event("ls-a", "ready")
    world.cards.memory[OTHER_GPU] = 65 << 20
    world.portal.stop("ls-a")
    evidence = world.portal.wait_event("ls-a", "cleaning_failed")["evidence"]
    assert evidence["quarantine"] == [OTHER_GPU]


def test_memory_and_processes_that_were_there_before_are_no_fault(world: World) -> None:
    world.cards.memory[GPU], world.cards.pids[GPU] = 3 << 30, {77}
    world.running()
    world.cards.memory[GPU] += 60 << 20
    world.portal.stop("ls-a")
    world.portal.wait_event("ls-a", "cleaned")


def test_a_process_that_stays_on_a_gpu_quarantines_it(world: World) -> None:
    world.running()
    world.cards.pids[GPU] = {4242}
    world.portal.stop("ls-a")
    assert world.portal.wait_event("ls-a", "cleaning_failed")["evidence"]["quarantine"] == [GPU]
