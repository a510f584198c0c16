"""The agent on a real engine, with the real gateway: what a lease becomes, and that nothing of it stays."""

import itertools
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodes.agent.hostconfig import CAPABILITIES, check_hostconfig
from tests.nodes.agent.fake_portal import FakePortal, lease
from tests.nodes.agent.rig_node import RigNode
from tests.rig.engine import Engine, wait_until
from tests.rig.images import SCRATCH
from tests.rig.nvml import FakeProcess

pytestmark = pytest.mark.rig
numbers = itertools.count(1)


@pytest.fixture
def node(whole_node: RigNode) -> Iterator[RigNode]:
    """The node, which every test leaves as clean as it found it."""
    with whole_node.tidy(f"ls-{next(numbers)}"):
        yield whole_node


def run(node: RigNode, devices: int = 2, image: str = SCRATCH, **changes: object) -> dict[str, object]:
    """Order a lease and wait until it is ready; returns the evidence."""
    wanted = lease(node.lease_id, node.engine.fleet.uuids[:devices], image, authorized_keys=[node.key_line], **changes)
    node.portal.want(wanted)
    evidence: dict[str, object] = node.portal.wait_event(node.lease_id, "ready")["evidence"]
    return evidence


def release(node: RigNode) -> dict[str, object]:
    """End a lease and wait until it is clean; returns the evidence."""
    node.portal.stop(node.lease_id)
    evidence: dict[str, object] = node.portal.wait_event(node.lease_id, "cleaned")["evidence"]
    return evidence


def test_a_lease_gets_exactly_its_gpus_and_can_be_logged_into(node: RigNode) -> None:
    evidence = run(node)
    assert evidence["devices_seen"] == sorted(node.engine.fleet.uuids[:2])
    assert evidence["devices_source"] == "nvml"
    assert evidence["keys_seen"] == [node.key.get_fingerprint()]
    assert node.ssh(node.lease_id, "echo $MARK; id -u").stdout.split() == ["scratch", "0"]
    assert node.portal.events(node.lease_id) == ["starting", "started", "ready"]
    steps = release(node)["steps"]
    assert isinstance(steps, list)
    assert {step["name"] for step in steps} == {
        "keys_gone", "container_gone", "processes_gone", "gpu_memory_base", "volume_gone", "network_gone", "log_gone",
    }  # fmt: skip
    assert node.portal.report(node.lease_id, "stopped")["evidence"] == {"exit_code": 0, "killed": False}
    assert node.ssh(node.lease_id, "true").returncode == 255


def test_the_container_is_made_from_the_allow_list_alone(node: RigNode) -> None:  # case H07
    run(node)
    inspect = node.inspect(node.container)
    assert check_hostconfig(inspect) == []
    host = inspect["HostConfig"]
    assert (host["Privileged"], host["CapDrop"], sorted(host["CapAdd"])) == (False, ["ALL"], sorted(CAPABILITIES))
    assert host["DeviceRequests"][0]["DeviceIDs"] == node.engine.fleet.uuids[:2]
    assert sorted(mount["Destination"] for mount in inspect["Mounts"]) == [
        "/.lease", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/workspace",
    ]  # fmt: skip
    status = node.ssh(node.lease_id, "grep -E 'CapEff|NoNewPrivs' /proc/self/status; df -m /workspace | tail -1").stdout
    assert "00000000000004fb" in status
    assert "NoNewPrivs:\t1" in status
    assert int(status.split()[-5]) < 64  # MiB: the volume is as small as ordered
    release(node)


def test_a_gpu_that_is_not_on_the_node_ends_failed_gpu_and_costs_no_other_gpu(node: RigNode) -> None:
    node.portal.want(lease(node.lease_id, ["GPU-00000000-0000-4000-8000-000000000000"], SCRATCH))
    cleaned = node.portal.wait_event(node.lease_id, "cleaned")
    assert node.portal.report(node.lease_id, "failed")["failure"] == "failed_gpu"
    assert "quarantine" not in cleaned["evidence"]


def test_a_gpu_the_hook_refuses_ends_failed_gpu_and_the_node_is_looked_at_again(node: RigNode) -> None:  # case C04
    node.engine.fail_gpu_hook("nvidia-container-cli: initialization error: nvml error: driver not loaded")
    try:
        before = len(node.portal.preflights)
        node.portal.want(lease(node.lease_id, node.engine.fleet.uuids[:1], SCRATCH))
        node.portal.wait_event(node.lease_id, "cleaned")
        assert node.portal.report(node.lease_id, "failed")["failure"] == "failed_gpu"
        node.portal.wait_for(lambda: len(node.portal.preflights) > before, "a second preflight")
        assert node.portal.preflights[-1]["ok"] is False
    finally:
        node.engine.fail_gpu_hook(None)
    node.portal.wait_for(lambda: node.portal.preflights[-1]["ok"], "a good preflight")


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(node: RigNode) -> None:  # case E01
    shell = ("/.lease/bin/busybox", "sh", "-c", "trap '' TERM; while :; do /.lease/bin/busybox sleep 1; done")
    node.engine.docker("create", "--name", "stubborn", SCRATCH, *shell)
    node.engine.docker("commit", "stubborn", "lessor-test/stubborn:1")
    node.engine.docker("rm", "stubborn")
    run(node, image="lessor-test/stubborn:1", stop_grace_s=1)
    release(node)
    assert node.portal.report(node.lease_id, "stopped")["evidence"] == {"exit_code": 137, "killed": True}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_restarted_agent_takes_a_running_lease_over_without_touching_it(node: RigNode, number: int) -> None:
    run(node)
    before = node.inspect(node.container)["State"]
    node.end("agent", number)
    node.start_agent()
    count = len(node.portal.heartbeats)
    node.portal.wait_for(
        lambda: any(b["leases"] and b["leases"][0]["phase"] == "running" for b in node.portal.heartbeats[count:]),
        "the lease in a heartbeat of the new agent",
    )
    assert node.inspect(node.container)["State"] == before
    assert node.ssh(node.lease_id, "echo back").stdout == "back\n"
    # Told once more when the agent died before it knew that the portal had heard it; the portal takes it as heard.
    assert node.portal.events(node.lease_id)[:3] == ["starting", "started", "ready"]
    assert set(node.portal.events(node.lease_id)[3:]) <= {"ready"}
    release(node)


def test_a_container_the_portal_does_not_want_is_stopped_and_cleaned_even_without_a_record(node: RigNode) -> None:
    # case G01
    run(node)
    node.end("agent", signal.SIGKILL)
    (node.state / "leases" / f"{node.lease_id}.json").unlink()
    del node.portal.leases[node.lease_id]
    node.start_agent()
    node.portal.wait_event(node.lease_id, "cleaned")


def test_a_newer_generation_replaces_the_older_one(node: RigNode) -> None:
    run(node)
    node.portal.want(
        lease(node.lease_id, node.engine.fleet.uuids[2:3], SCRATCH, generation=2, authorized_keys=[node.key_line])
    )
    node.portal.wait_for(lambda: "ready" in node.portal.events(node.lease_id, 2), "generation 2")
    assert node.portal.events(node.lease_id, 1)[-1] == "cleaned"
    node.portal.stop(node.lease_id)
    node.portal.wait_for(lambda: "cleaned" in node.portal.events(node.lease_id, 2), "generation 2 gone")


def test_a_gpu_that_keeps_memory_and_a_process_is_quarantined_and_the_other_one_is_not(node: RigNode) -> None:
    # case G07
    run(node)
    stuck = node.engine.fleet.uuids[0]
    node.engine.fleet.start_process(stuck, FakeProcess(pid=4242))
    try:
        node.portal.stop(node.lease_id)
        evidence = node.portal.wait_event(node.lease_id, "cleaning_failed", 120)["evidence"]
        assert evidence["quarantine"] == [stuck]
        failed = {step["name"] for step in evidence["steps"] if not step["ok"]}
        assert failed == {"processes_gone", "gpu_memory_base"}
    finally:
        node.engine.fleet.end_process(stuck, 4242)


def test_a_main_process_that_ends_by_itself_ends_the_lease(node: RigNode) -> None:
    run(node)
    node.engine.docker("kill", "--signal", "TERM", node.container)
    node.portal.wait_event(node.lease_id, "cleaned")
    assert node.portal.report(node.lease_id, "exited")["evidence"] == {"exit_code": 0, "oom_killed": False}


def test_the_hard_deadline_is_kept_while_the_portal_is_away(node: RigNode) -> None:
    run(node, deadline_s=3)
    node.portal.status = 503
    wait_until(
        lambda: node.engine.docker("inspect", node.container, check=False).returncode != 0, seconds=30, what="the end"
    )
    node.portal.status = 0
    node.portal.wait_event(node.lease_id, "cleaned")
    assert node.portal.events(node.lease_id)[-3:] == ["deadline", "stopped", "cleaned"]


def test_a_second_agent_on_the_same_state_refuses_to_start(node: RigNode) -> None:
    with pytest.raises(AssertionError, match="Another agent"):
        node.agent("run")
    assert "running" in node.agent("status")


def test_the_workspace_is_capped_and_gone_with_the_lease(node: RigNode) -> None:
    run(node)
    filled = node.ssh(node.lease_id, "dd if=/dev/zero of=/workspace/big bs=1M count=200; ls -l /workspace/big")
    assert "No space left" in filled.stderr
    mounts = node.ssh(node.lease_id, "grep -E ' (/workspace|/.lease) ' /proc/mounts").stdout
    options = {line.split()[1]: line.split()[3].split(",") for line in mounts.splitlines()}
    assert {"nosuid", "nodev"} <= set(options["/workspace"])
    assert "ro" in options["/.lease"]
    release(node)


def test_a_node_without_gpus_is_everything_but_the_device(
    small_engine: Engine, bundle_dir: Path, tmp_path: Path
) -> None:
    with (
        # A node of its own: the module's agent on the same engine takes what is its own and not wanted for an orphan.
        FakePortal(small_engine.host_ip, "nd-simulated") as portal,
        RigNode(small_engine, portal, bundle_dir, tmp_path, "--simulate", port=2223) as node,
    ):
        portal.wait_for(lambda: bool(portal.inventories), "an inventory")
        inventory = portal.inventories[-1]
        assert (inventory["simulated"], inventory["capabilities"]["gpu_request"]) == (True, "simulated")
        evidence = run(node)
        assert evidence["devices_source"] == "proc1_environ"
        assert evidence["devices_seen"] == sorted(small_engine.fleet.uuids[:2])
        assert node.inspect(node.container)["HostConfig"]["DeviceRequests"] == []
        release(node)
        assert node.still_there() == {}
