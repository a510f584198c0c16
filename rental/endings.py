"""Leases that end because of what happened elsewhere: their GPU failed, their tenant was suspended.

Called by signals at once, and by a sweep for what a signal missed. Each may be repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import transaction
from django.db.models import Q

from nodes import broker
from nodes.models import Gpu
from rental import lifecycle, notices, services
from rental.models import Lease
from rental.states import EndReason, State

if TYPE_CHECKING:
    from portal.actor import Actor
    from rental.models import LeaseQuerySet

HOLDING = (State.ASSIGNED, State.STARTING, State.RUNNING)
SUSPENDED = "This account is suspended; ask the operator."


def on_failed_gpus() -> LeaseQuerySet:
    """Leases that hold a GPU which is lost or quarantined, and are not being stopped yet."""
    failed = Gpu.objects.present().exclude(health=Gpu.Health.HEALTHY)
    return Lease.objects.filter(
        state__in=HOLDING, allocations__released_at__isnull=True, allocations__slot__gpu__in=failed
    ).distinct()


def of_suspended_tenants() -> LeaseQuerySet:
    """Leases that are not being stopped yet though their tenant is suspended."""
    return Lease.objects.filter(state__in=(State.REQUESTED, *HOLDING), tenant__suspended_at__isnull=False)


@transaction.atomic
def end_on_failed_gpu(*, lease_id: str, actor: Actor) -> Lease:
    """A GPU of the lease failed: it ends (``failed_gpu``), charged to the last heartbeat that had the GPU well.

    Before it is ready it costs nothing. Nothing happens when its GPUs are well again, or it is being stopped.
    """
    lease = Lease.objects.select_for_update(of=("self",)).select_related("tenant", "node").get(pk=lease_id)
    gpu = _failed_gpu(lease)
    if gpu is None or lease.state not in HOLDING:
        return lease
    detail = f"{gpu.uuid}: {gpu.health_note or 'reported as faulty'}"[:500]
    # The heartbeat that said so is not confirmed yet; one that came before found the GPU well.
    well_until = min(gpu.health_at, lease.confirmed_at or gpu.health_at)
    ended = lifecycle.move(
        lease_id=lease_id,
        to=State.STOPPING,
        code=EndReason.FAILED_GPU,
        actor=actor,
        detail=detail,
        data={"gpu": gpu.uuid},
        gpu_well_until=well_until,
        end_reason=EndReason.FAILED_GPU,
        end_detail=detail,
    )
    if ended.ready_at is not None:
        notices.tell(lease=ended, kind="gpu_failed", key="gpu_failed", actor=actor, data={"gpu": gpu.uuid})
    if ended.node_id:
        broker.wake(node_id=ended.node_id, lease_id=ended.pk)
    return ended


@transaction.atomic
def end_for_suspension(*, lease_id: str, actor: Actor) -> Lease:
    """The tenant is suspended: its lease ends, charged until now; before it is ready it costs nothing."""
    lease = lifecycle.lock(lease_id=lease_id)
    if lease.tenant.suspended_at is None or lease.state not in (State.REQUESTED, *HOLDING):
        return lease
    return services.stop_lease(lease=lease, actor=actor, reason=EndReason.TENANT_SUSPENDED, detail=SUSPENDED)


def _failed_gpu(lease: Lease) -> Gpu | None:
    held = Q(slots__allocations__lease=lease, slots__allocations__released_at__isnull=True)
    return Gpu.objects.filter(held).exclude(health=Gpu.Health.HEALTHY).order_by("health_at", "pk").first()
