"""What an agent would send, as plain dictionaries that a test bends."""

from __future__ import annotations

from typing import Any

from tests.clients import ApiClient
from tests.make import H100, H100_BYTES, ed25519_line

NODE_API = "/api/node/v1/"
UUIDS = [f"GPU-1111{n}111-aaaa-bbbb-cccc-00000000000{n}" for n in range(8)]


def node_client(secret: str | None) -> ApiClient:
    """Speaks to the node API."""
    return ApiClient(secret, base=NODE_API)


def enrolment(token: str, **values: Any) -> dict[str, Any]:
    """Body of ``POST enrol``."""
    body = {
        "enrolment_token": token,
        "agent_version": "0.1.0",
        "hostname": "gpu-box",
        "machine_id": "6d6f636b6564",
        "boot_id": "boot-1",
        "ssh_host": "",
        "ssh_port": None,
        "ssh_host_key": "",
    }
    return {**body, **values}


def gpu(uuid: str = UUIDS[0], **values: Any) -> dict[str, Any]:
    """One GPU of an inventory."""
    body = {
        "uuid": uuid,
        "name": H100,
        "memory_bytes": H100_BYTES,
        "index": 0,
        "pci_bus_id": "00000000:1B:00.0",
        "serial": None,
        "compute_capability": "9.0",
        "mig_mode": False,
        "healthy": True,
        "fault": "",
    }
    return {**body, **values}


def inventory(gpus: list[dict[str, Any]] | None = None, **values: Any) -> dict[str, Any]:
    """Body of ``POST inventory``: one GPU unless told otherwise."""
    body: dict[str, Any] = {
        "boot_id": "boot-1",
        "agent_version": "0.1.0",
        "simulated": False,
        "driver_version": "570.86.15",
        "cuda_version": "12.8",
        "ssh_host": "gpu1.example.test",
        "ssh_port": 2222,
        "ssh_host_key": ed25519_line(),
        "gpus": [gpu()] if gpus is None else gpus,
        "machine": {
            "hostname": "gpu-box",
            "os": "Debian GNU/Linux 12",
            "kernel": "6.1.0",
            "arch": "x86_64",
            "cpu_model": "EPYC",
            "cpu_cores": 64,
            "memory_bytes": 512 << 30,
            "disk_bytes": 4 << 40,
            "disk_free_bytes": 3 << 40,
            "docker_version": "28.5.2",
            "storage_driver": "overlay2",
            "cgroup_version": 2,
        },
        "capabilities": {"gpu_request": "cdi", "runtimes": ["runc"], "workspace_quota": True},
    }
    return {**body, **values}


def heartbeat(**values: Any) -> dict[str, Any]:
    """Body of ``POST heartbeat``."""
    body = {"boot_id": "boot-1", "agent_run": "run-1", "clock": "2026-11-30T10:00:00Z", "leases": [], "gpus": []}
    return {**body, **values}
