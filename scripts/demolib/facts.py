"""What the demo proves and writes down: devices, container settings, money, and that nothing is left behind."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodes.agent.holderbook import BOOK
from nodes.agent.hostconfig import check_hostconfig

if TYPE_CHECKING:
    from scripts.demolib.node import Node


def devices_in_database(lease_id: str) -> list[str]:
    """The UUIDs the database says the lease has now, sorted."""
    from rental.models import Lease, device_uuids

    return device_uuids([Lease.objects.get(pk=lease_id)]).get(lease_id, [])


def first_gpu_model() -> str:
    """The model of a GPU of this machine, as the inventory has it."""
    from nodes.models import Gpu

    return Gpu.objects.present().values_list("model", flat=True)[0]


def hostconfig_deviations(socket: Path, container_id: str) -> list[str]:
    """Read the container's settings back from the engine and name all that is not on the allow-list."""
    return check_hostconfig(json.loads(_docker(socket, "inspect", container_id))[0])


def left_behind(node: Node) -> dict[str, int]:
    """What is left of leases on this machine: counts, all 0 when the node cleaned up."""
    label = ("--filter", "label=lessor.role=workspace")
    networks = _docker(node.docker_socket, "network", "ls", "-q", "--filter", "label=lessor.lease")
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if f"{node.state}/volumes" in line]
    return {
        "containers": len(_docker(node.docker_socket, "ps", "-aq", *label).split()),
        "networks": len(networks.split()) + len([*(node.state / BOOK).glob("*")]),
        "mounts": len(mounts),
        "processes": _bundle_processes(),
    }


def _bundle_processes() -> int:
    """Processes started from a lease's bundle: sftp-server, rsync, shells and probes that outlived their session."""
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            count += b"/.lease/" in command
    return count


def _docker(socket: Path, *arguments: str) -> str:
    return subprocess.run(
        ["docker", "-H", f"unix://{socket}", *arguments], capture_output=True, text=True, check=True, timeout=60
    ).stdout


def lease_facts(lease: dict[str, Any], receipt: dict[str, Any]) -> dict[str, Any]:
    """The money of the finished lease: ``ticks`` from the order, ``receipt_ticks`` as the receipt has it."""
    seconds = sum(line["seconds"] for line in receipt["lines"])
    price = lease["price_micros_per_hour"]
    return {
        "lease": lease["id"],
        "price_uusd_per_hour": price,
        "units": lease["units"],
        "seconds": seconds,
        "ticks": seconds * lease["units"] * price,
        "receipt_ticks": receipt["total_ticks"],
        "end_reason": lease["end_reason"],
    }
