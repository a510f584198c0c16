"""Short ways to orders and reports, through the public services only."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from nodes.models import Node
from portal.actor import Actor
from portal.models import SshKey, Tenant, User
from rental import reports, requests, services
from rental.models import Lease, device_uuids
from tests.make import H100


def a_request(**values: Any) -> requests.LeaseRequest:
    """A valid request; ``values`` as a renter would send them."""
    return requests.parse({"gpu_model": H100, **values})


def a_quote(user: User, tenant: Tenant, **values: Any) -> str:
    """The token of a quote."""
    return services.build_quote(tenant=tenant, user=user, request=a_request(**values)).token


def order(user: User, tenant: Tenant, **values: Any) -> Lease:
    """A lease just ordered."""
    token = a_quote(user, tenant, **values)
    return services.request_lease(tenant=tenant, actor=Actor.of_user(user), quote_token=token)[0]


def report(lease: Lease, event: str, *, node: Node | None = None, **values: Any) -> dict[str, str]:
    """What the lease's node reports; ``ready`` comes with the right evidence unless the test brings its own."""
    lease.refresh_from_db()
    payload: dict[str, Any] = {"generation": lease.generation, "event": event, "container_id": "c" * 64, **values}
    if event == "ready" and "evidence" not in values:
        payload["evidence"] = good_evidence(lease)
    if event == "failed" and "failure" not in values:
        payload["failure"] = "failed_launch"
    chosen = node or lease.node
    assert chosen is not None
    return reports.handle(node=chosen, lease_id=lease.pk, payload=payload)


def good_evidence(lease: Lease) -> dict[str, Any]:
    """What a node that did all right has seen."""
    keys = SshKey.objects.admitted_to(lease.tenant_id).values_list("fingerprint", flat=True)
    return {
        "devices_seen": device_uuids([lease]).get(lease.pk, []),  # none any more, for one that is over
        "devices_source": "nvml",
        "keys_seen": sorted(keys),
        "ssh_ms": 138,
    }


def running(user: User, tenant: Tenant, **values: Any) -> Lease:
    """A lease that became ready just now."""
    lease = order(user, tenant, **values)
    report(lease, "starting")
    report(lease, "started")
    report(lease, "ready")
    lease.refresh_from_db()
    return lease


def heartbeat(lease: Lease) -> None:
    """The node vouches for the lease, by our clock, now."""
    lease.refresh_from_db()
    assert lease.node is not None
    said = {"id": lease.pk, "generation": 1, "phase": "running", "container_id": lease.container_id}
    Node.objects.update(last_seen_at=timezone.now())
    reports.confirm(node=lease.node, leases=[said], now=timezone.now())


def vouch(lease: Lease, clock: Any, seconds: int) -> None:
    """Time passes with a heartbeat each minute."""
    for _ in range(seconds // 60):
        clock.shift(60)
        heartbeat(lease)
    clock.shift(seconds % 60)
    heartbeat(lease)
