"""Taking whole GPUs for a lease: ask placement, take by conditional UPDATE, ask again when somebody was faster."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.db import transaction
from django.db.models import Count, IntegerField, OuterRef, Subquery

from nodes.models import Gpu, GpuSlot, Node
from portal.errors import NoCapacity
from portal.ready import Ready
from rental import catalog, fleet, placement
from rental.models import Allocation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django.db.models import QuerySet

    from rental.models import Lease
    from rental.requests import LeaseRequest

TRIES: Final = 3
WHOLE: Final = 1000
LEAST_CPUS_MILLI: Final = 100
LEAST_MEMORY_BYTES: Final = 256 << 20
_PRESENT: Final = (
    Gpu.objects.present().filter(node=OuterRef("pk")).order_by().values("node").annotate(n=Count("pk")).values("n")
)


class _FasterError(Exception):
    """Somebody else took a slot, or the node stopped selling, between the snapshot and the UPDATE."""


def take(*, lease: Lease, request: LeaseRequest, gpu_memory_gb: int, now: datetime) -> Node:
    """Take the GPUs of an order for ``lease``, all or none, and return their node. NoCapacity says why not.

    ``gpu_memory_gb`` is what the renter was shown; a board with less memory does not serve the order. Call it inside
    the transaction of the order: what it took goes back with a rollback.
    """
    for _ in range(TRIES):
        decision = _decide(request, gpu_memory_gb, now)
        if decision.node_id is None:
            raise no_capacity(request, decision.reasons)
        try:
            return _take(lease, decision.node_id, decision.gpu_ids, now)
        except _FasterError:
            continue
    raise no_capacity(request, (placement.Reason("contended", 0, "others took them at this very moment"),))


def _decide(request: LeaseRequest, gpu_memory_gb: int, now: datetime) -> placement.Decision:
    """The answer for the whole fleet; usually out of a few nodes of it."""
    wanted = placement.Request(request.gpu_count)
    near = fleet.candidates(now=now, gpu_model=request.gpu_model, gpu_count=request.gpu_count)
    fitting = _fitting(near, request, gpu_memory_gb)
    # Where the order's filters take GPUs away, the order of nodes may be another one.
    if len(fitting) == len(near):
        decision = placement.place(fleet.snapshot(fitting), wanted)
        if decision.node_id is not None:
            return decision
    gpus = fleet.read(now=now, gpu_model=request.gpu_model)
    return placement.place(fleet.snapshot(_fitting(gpus, request, gpu_memory_gb)), wanted)


def _fitting(gpus: list[fleet.FleetGpu], request: LeaseRequest, gpu_memory_gb: int) -> list[fleet.FleetGpu]:
    return [gpu for gpu in gpus if fleet.admits(gpu, gpu_memory_gb=gpu_memory_gb, cuda_min=request.cuda_min)]


def no_capacity(request: LeaseRequest, reasons: Sequence[placement.Reason]) -> NoCapacity:
    """The refusal, in a sentence and as data."""
    name = catalog.model_facts(request.gpu_model).short_name
    why = "; ".join(reason.text for reason in reasons)
    return NoCapacity(
        f"{request.gpu_count} x {name} cannot be had now: {why}.",
        extra={"reasons": [{"code": r.code, "count": r.count, "text": r.text} for r in reasons]},
    )


def share(node: Node, gpu_count: int) -> dict[str, Any]:
    """CPU, memory and disk of a lease: the node's in proportion to its GPUs, less what the system keeps.

    ``node`` comes from take(), with the number of its GPUs.
    """
    total = max(gpu_count, node.present_gpus)  # type: ignore[attr-defined]  # annotated by take()
    cpus = max(0, node.cpu_cores * 1000 - settings.NODE_RESERVED_CPUS_MILLI)
    memory = max(0, node.memory_bytes - settings.NODE_RESERVED_MEMORY_BYTES)
    return {
        "cpus_milli": max(LEAST_CPUS_MILLI, cpus * gpu_count // total),
        "memory_bytes": max(LEAST_MEMORY_BYTES, memory * gpu_count // total),
        "workspace_bytes": settings.LEASE_WORKSPACE_BYTES,
    }


@transaction.atomic
def _take(lease: Lease, node_id: str, gpu_ids: Sequence[int], now: datetime) -> Node:
    """All slots of these GPUs, or _FasterError and nothing. Locks the slots in pk order, then the node."""
    slots = [pk for (pk,) in _ask(_SLOTS_OF_ONE, _slots, gpu_ids)]
    if GpuSlot.objects.filter(pk__in=slots, used_milli=0).update(used_milli=WHOLE) != len(slots):
        raise _FasterError
    # Under the node's lock: a drain either sees this order committed or is seen by it (case G06).
    selling: list[Node] = _SELLING.rows(node=node_id, heard=now - timedelta(seconds=settings.QUIET_AFTER_S))
    well = {gpu for gpu, node in _ask(_WELL_ONE, _well, gpu_ids) if node == node_id}
    if not selling or well != set(gpu_ids):
        raise _FasterError
    Allocation.objects.bulk_create(
        Allocation(lease=lease, generation=lease.generation + 1, slot_id=slot, milli=WHOLE, taken_at=now)
        for slot in slots
    )
    return selling[0]


def _slots(gpus: Sequence[int]) -> QuerySet[GpuSlot, tuple[int]]:
    return GpuSlot.objects.select_for_update().filter(gpu__in=gpus).order_by("pk").values_list("pk")


def _well(gpus: Sequence[int]) -> QuerySet[Gpu, tuple[int, str]]:
    return Gpu.objects.well().filter(pk__in=gpus).values_list("pk", "node_id")


def _selling(node: str, heard: datetime) -> QuerySet[Node]:
    selling = Node.objects.selling_since(heard)
    selling = selling.annotate(present_gpus=Subquery(_PRESENT, output_field=IntegerField()))
    return selling.select_for_update(no_key=True).filter(pk=node)


def _ask(of_one: Ready, of_many: Callable[[Sequence[int]], QuerySet[Any, Any]], gpus: Sequence[int]) -> list[Any]:
    return of_one.rows(gpu=gpus[0]) if len(gpus) == 1 else list(of_many(gpus))


# Most orders are for one GPU.
_SLOTS_OF_ONE: Final = Ready(lambda gpu: _slots([gpu]), gpu=-1)
_WELL_ONE: Final = Ready(lambda gpu: _well([gpu]), gpu=-1)
_SELLING: Final = Ready(_selling, node="?node", heard=datetime(2000, 1, 1, tzinfo=UTC))
