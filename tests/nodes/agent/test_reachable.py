"""Whom execd lets in while an agent starts: it waits for what an earlier one left, and not for ever."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from nodes.agent import reachable
from nodes.agent.reachable import running_container
from tests.nodes.agent.world import World, until


def restart_slowly(world: World, pool: ThreadPoolExecutor) -> None:
    """Begin a start that stands still where it looks at what the engine has."""
    earlier = world.reconciler
    world.stop()
    world.engine.calls.clear()
    world.engine.hangs = {"containers"}
    pool.submit(world.start)
    until(lambda: world.reconciler is not earlier and any(c.startswith("containers") for c in world.engine.calls))


def test_a_login_while_the_agent_starts_waits_for_its_first_look(world: World) -> None:
    world.running()
    with ThreadPoolExecutor(2) as pool:
        restart_slowly(world, pool)
        asked = pool.submit(running_container, world.reconciler, world.engine, "ls-a")
        assert not asked.done()
        world.engine.thaw.set()
        found = asked.result(20)
    assert found is not None
    assert (found.lease_id, found.container_id) == ("ls-a", world.engine.boxes["lessor-ls-a-1"]["Id"])


def test_a_first_look_that_does_not_end_holds_no_login_for_ever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reachable, "ADOPTION_WAIT_S", 0.1)
    world.running()
    with ThreadPoolExecutor(2) as pool:
        restart_slowly(world, pool)
        assert running_container(world.reconciler, world.engine, "ls-a") is None
        world.engine.thaw.set()
    until(lambda: running_container(world.reconciler, world.engine, "ls-a") is not None)


def test_only_a_lease_that_runs_here_is_entered(world: World) -> None:
    world.running()
    assert running_container(world.reconciler, world.engine, "ls-b") is None
    world.engine.exit("lessor-ls-a-1", 0)
    assert running_container(world.reconciler, world.engine, "ls-a") is None
