"""What a node should have on it: the body of ``GET desired`` (docs/node-protocol.md). Reads only."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.utils import timezone

from portal.ready import Ready
from rental import access, notices, ssh_certificates
from rental.models import Lease, device_uuids
from rental.states import State

if TYPE_CHECKING:
    from nodes.models import Node
    from rental.models import LeaseNotice, LeaseQuerySet


def desired_leases(node: Node, lease_id: str | None = None) -> list[dict[str, Any]]:
    """Every lease that should exist on this node, or at most the named one. Four queries whatever their number.

    A lease that is over is missing even while its devices are still taken: what the node finds of it is an orphan.
    """
    found: list[Lease] = _ONE.rows(node=node.pk, lease=lease_id) if lease_id else list(_live_on(node.pk))
    if not found:
        return []
    devices, keys, now = device_uuids(found), access.keys_of(found), timezone.now()
    told = notices.standing(found)
    return [_word(lease, devices.get(lease.pk, []), keys[lease.pk], told.get(lease.pk, []), now) for lease in found]


def _live_on(node: str) -> LeaseQuerySet:
    return Lease.objects.live().filter(node=node).select_related("created_by").order_by("pk")


# Every order and every stop is followed by this question.
_ONE: Final = Ready(lambda node, lease: _live_on(node).filter(pk=lease), node="?node", lease="?lease")


def _word(
    lease: Lease, devices: list[str], keys: list[access.LeaseKey], told: list[LeaseNotice], now: datetime
) -> dict[str, Any]:
    stop = lease.state == State.STOPPING
    return {
        "id": lease.pk,
        "generation": lease.generation,
        "want": "stop" if stop else "run",
        "stop_reason": lease.end_reason if stop else "",
        "devices": devices,
        "image": lease.image,
        "cpus_milli": lease.cpus_milli,
        "memory_bytes": lease.memory_bytes,
        "shm_bytes": lease.memory_bytes // 2,
        "pids": settings.LEASE_PIDS,
        "workspace_bytes": lease.workspace_bytes,
        "authorized_keys": [key.line for key in keys],
        "deadline_s": _seconds_left(lease, now),
        "stop_grace_s": settings.STOP_GRACE_S,
        "notices": notices.lines(lease, told),
        "ssh_ca": ssh_certificates.authorities(),
    }


def _seconds_left(lease: Lease, now: datetime) -> int | None:
    if lease.deadline_at is None:
        return None
    return max(0, (lease.deadline_at - now) // timedelta(seconds=1))
