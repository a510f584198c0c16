"""How a lease comes up in the agent and what it is told while it runs."""

import pytest

from nodes.agent.failures import LaunchError
from nodes.agent.probe import ProbeKey
from tests.nodes.agent.fake_portal import lease
from tests.nodes.agent.world import GPU, OTHER_GPU, World, until


def test_a_lease_is_reported_step_by_step_and_leaves_nothing(world: World) -> None:
    world.running()
    assert world.engine.nets == {"lessor-ls-a-1"}
    world.portal.stop("ls-a")
    world.portal.wait_event("ls-a", "cleaned")
    assert world.portal.events("ls-a") == ["starting", "started", "ready", "stopped", "cleaned"]
    assert (world.engine.boxes, world.engine.nets) == ({}, set())
    assert list((world.directory / "volumes").iterdir()) == []
    world.portal.wait_for(lambda: not list((world.directory / "leases").iterdir()), "no record left")


@pytest.mark.parametrize(
    ("message", "failure", "driver"),
    [
        ('could not select device driver "" with capabilities: [[gpu utility compute]]', "failed_gpu", True),
        (f"nvidia-container-cli: device error: {GPU}: unknown device", "failed_gpu", False),
        ("CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=GPU-1", "failed_gpu", False),
        ("exec: no such file or directory", "failed_launch", False),
    ],
)
def test_a_refused_start_is_sorted_by_what_is_at_fault(
    world: World,
    message: str,
    failure: str,
    driver: bool,  # noqa: FBT001  # a column of the table
) -> None:
    world.engine.start_error = message
    world.want()
    world.portal.wait_event("ls-a", "cleaned")
    assert world.portal.report("ls-a", "failed")["failure"] == failure
    assert bool(world.faults) is driver
    assert world.engine.boxes == {}


def test_a_container_that_is_not_as_ordered_is_never_started(world: World) -> None:
    world.engine.tamper = lambda box: box["HostConfig"].update(Privileged=True)
    world.want()
    world.portal.wait_event("ls-a", "cleaned")
    failed = world.portal.report("ls-a", "failed")
    assert (failed["failure"], "Privileged" in failed["detail"]) == ("failed_launch", True)
    assert "start" not in world.engine.calls


def test_a_gpu_that_is_not_here_ends_failed_gpu_without_a_container(world: World) -> None:
    world.portal.want(lease("ls-a", ["GPU-99999999-aaaa-4bbb-8ccc-000000000009"], "here:1"))
    cleaned = world.portal.wait_event("ls-a", "cleaned")
    assert world.portal.report("ls-a", "failed")["failure"] == "failed_gpu"
    assert "create" not in world.engine.calls
    assert all(step["ok"] for step in cleaned["evidence"]["steps"])


def test_a_failed_proof_stops_and_cleans_what_was_started(world: World) -> None:
    world.proof.error = LaunchError("failed_gpu", "The container sees other GPUs.")
    world.want()
    world.portal.wait_event("ls-a", "cleaned")
    assert world.portal.events("ls-a") == ["starting", "started", "failed", "stopped", "cleaned"]


def test_an_image_whose_main_process_ends_at_once_fails_with_its_exit_code(world: World) -> None:  # case C07
    world.proof.gate.clear()
    world.want()
    world.portal.wait_event("ls-a", "started")
    world.engine.exit("lessor-ls-a-1", 3)
    world.portal.wait_event("ls-a", "cleaned")
    assert "exit code 3" in world.portal.report("ls-a", "failed")["detail"]


def test_a_late_copy_of_an_order_does_not_start_a_finished_lease_again(world: World) -> None:
    world.running()
    old = dict(world.portal.leases["ls-a"])
    world.portal.stop("ls-a")
    world.portal.wait_event("ls-a", "cleaned")
    world.portal.want(old)
    pulls = len(world.portal.pulls)
    world.portal.wait_for(lambda: len(world.portal.pulls) > pulls + 2, "three more pulls")
    assert world.engine.calls.count("create") == 1


def test_a_newer_generation_waits_until_the_older_one_is_clean(world: World) -> None:  # case E03
    world.running()
    world.portal.want(lease("ls-a", [OTHER_GPU], "here:1", generation=2))
    world.portal.wait_for(lambda: "ready" in world.portal.events("ls-a", 2), "generation 2")
    assert world.portal.events("ls-a", 1)[-2:] == ["stopped", "cleaned"]
    assert list(world.engine.boxes) == ["lessor-ls-a-2"]


def test_changed_keys_reach_the_gateway_while_the_lease_runs(world: World) -> None:
    world.running()
    key = ProbeKey.make().public_line
    world.portal.leases["ls-a"]["authorized_keys"] = [key]
    leases = world.directory / "run" / "gateway" / "leases.json"
    until(lambda: key in leases.read_text())
    assert leases.stat().st_mode & 0o777 == 0o640


def test_the_probe_key_is_gone_once_the_lease_is_ready(world: World) -> None:
    world.proof.gate.clear()
    world.want()
    leases = world.directory / "run" / "gateway" / "leases.json"
    world.portal.wait_event("ls-a", "started")
    assert '"probe_key": "ssh-ed25519 ' in leases.read_text()
    world.proof.gate.set()
    world.portal.wait_event("ls-a", "ready")
    assert '"probe_key": null' in leases.read_text()


def test_an_order_that_cannot_be_read_fails_and_harms_nothing_else(world: World) -> None:
    world.want("ls-bad", memory_bytes="lots")
    world.running()
    world.portal.wait_event("ls-bad", "cleaned")
    assert "memory_bytes" in world.portal.report("ls-bad", "failed")["detail"]
    assert list(world.engine.boxes) == ["lessor-ls-a-1"]
