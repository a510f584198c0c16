"""Which SSH keys open a lease, for many leases at once. What a node is told and what its proof is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from portal.models import ROLES_THAT_LEASE, Membership
from portal.ready import Ready

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from django.db.models import QuerySet

    from rental.models import Lease


@dataclass(frozen=True)
class LeaseKey:
    """One key: id, canonical line, fingerprint as ``ssh-keygen -lf`` prints it, and since when we know it."""

    id: str
    line: str
    fingerprint: str
    created_at: datetime


def keys_of_tenants(tenant_ids: Sequence[str]) -> dict[str, list[LeaseKey]]:
    """``{tenant id: keys}`` of active members who may lease, oldest first, each line once. One query.

    A suspended tenant has none: nobody gets in any more.
    """
    rows = _OF_ONE.rows(tenant=tenant_ids[0]) if len(tenant_ids) == 1 else _rows(tenant_ids)
    found: dict[str, list[LeaseKey]] = {}
    for tenant_id, key_id, line, fingerprint, created_at in rows:
        found.setdefault(tenant_id, []).append(LeaseKey(key_id, line, fingerprint, created_at))
    return found


def _rows(tenant_ids: Sequence[str]) -> QuerySet[Membership, tuple[Any, ...]]:
    return (
        Membership.objects.filter(
            tenant_id__in=tenant_ids,
            tenant__suspended_at__isnull=True,
            role__in=ROLES_THAT_LEASE,
            user__is_active=True,
            user__ssh_keys__isnull=False,
        )
        .order_by("user__ssh_keys__created_at", "user__ssh_keys__id")
        .values_list(
            "tenant_id",
            "user__ssh_keys__id",
            "user__ssh_keys__line",
            "user__ssh_keys__fingerprint",
            "user__ssh_keys__created_at",
        )
    )


# Every quote and order asks this, and every node about a lease that has just been ordered.
_OF_ONE: Final = Ready(lambda tenant: _rows([tenant]), tenant="?tenant")


def keys_of(leases: Sequence[Lease]) -> dict[str, list[LeaseKey]]:
    """``{lease id: keys that open it now}``. Two people with one key give one line. One query."""
    by_tenant = keys_of_tenants(sorted({lease.tenant_id for lease in leases}))
    return {lease.pk: _chosen(by_tenant.get(lease.tenant_id, []), lease.ssh_key_ids) for lease in leases}


def _chosen(keys: list[LeaseKey], wanted: list[str] | None) -> list[LeaseKey]:
    admitted = [key for key in keys if wanted is None or key.id in wanted]
    return list({key.line: key for key in reversed(admitted)}.values())[::-1]
