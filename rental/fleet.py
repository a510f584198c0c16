"""The fleet as the catalog and placement see it: GPUs with what stands in their way, read in one query."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.conf import settings
from django.db.models import Count, Exists, Max, OuterRef

from nodes.models import Gpu, GpuSlot, Node, board_gb
from portal.ready import Ready
from rental import placement

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.db.models import QuerySet


CANDIDATES: Final = 4  # nodes; more than one, since another order may be faster


class FleetGpu(NamedTuple):
    """A present GPU of a live node. ``state`` is placement's word; ``memory_gb`` is what the board is sold as."""

    id: int
    model: str
    memory_gb: int
    pci_bus_id: str
    state: str
    node_id: str
    node_name: str
    cuda_version: str
    simulated: bool


# In the order in which _gpu reads them. Rows of a large fleet: tuples, and only what is looked at.
FACTS: Final = (
    "id", "model", "memory_bytes", "pci_bus_id", "health", "mig_mode", "node_id", "node__name", "node__cuda_version",
    "node__simulated", "node__last_seen_at", "node__draining_since", "node__preflight_ok",
)  # fmt: skip


def read(*, now: datetime, gpu_model: str | None = None) -> list[FleetGpu]:
    """Every GPU that is present on an enrolled, unrevoked node; of one model if named. One query."""
    heard = now - timedelta(seconds=settings.QUIET_AFTER_S)
    rows = _rows(Gpu.objects.all()) if gpu_model is None else _OF_MODEL.rows(model=gpu_model)
    return [_gpu(row, heard) for row in rows]


def candidates(*, now: datetime, gpu_model: str, gpu_count: int) -> list[FleetGpu]:
    """The GPUs of this model on the few nodes that placement would look at first, as read() gives them. One query.

    What stands in the way elsewhere is not told: who finds nothing among them asks read().
    """
    heard = now - timedelta(seconds=settings.QUIET_AFTER_S)
    return [_gpu(row, heard) for row in _NEAR.rows(model=gpu_model, heard=heard, count=gpu_count)]


def _near(model: str, heard: datetime, count: int) -> QuerySet[Gpu, tuple[Any, ...]]:
    return _rows(Gpu.objects.filter(model=model, node__in=_best(model, heard, count)))


def _best(model: str, heard: datetime, count: int) -> QuerySet[Gpu, tuple[str]]:
    """Nodes with enough free GPUs: those that keep the fewest first, as placement prefers them."""
    used = GpuSlot.objects.filter(gpu=OuterRef("pk"))
    free = Gpu.objects.well().filter(Exists(used), ~Exists(used.filter(used_milli__gt=0)), model=model)
    selling = Node.objects.selling_since(heard)
    groups = free.filter(node__in=selling.values("pk")).order_by().values("node_id", "node__name")
    enough = groups.annotate(free=Count("pk")).filter(free__gte=count)
    return enough.order_by("free", "node__name", "node_id").values_list("node_id")[:CANDIDATES]


def _rows(gpus: QuerySet[Gpu]) -> QuerySet[Gpu, tuple[Any, ...]]:
    there = gpus.filter(retired_at__isnull=True, node__enrolled_at__isnull=False, node__revoked_at__isnull=True)
    return there.order_by("node__name", "node_id", "pci_bus_id", "id").values_list(*FACTS, Max("slots__used_milli"))


# Every quote and every order asks these.
_OF_MODEL: Final = Ready(lambda model: _rows(Gpu.objects.filter(model=model)), model="?model")
_NEAR: Final = Ready(_near, model="?model", heard=datetime(2000, 1, 1, tzinfo=UTC), count=-1)


def _gpu(row: tuple[Any, ...], heard: datetime) -> FleetGpu:
    (pk, model, memory_bytes, bus, health, mig_mode, node_id, node, cuda, simulated, seen_at, draining, ok, used) = row
    if used is None:  # without slots it cannot be taken
        state = placement.NOT_READY
    elif used:
        state = placement.BUSY
    elif mig_mode or health != Gpu.Health.HEALTHY:
        state = placement.UNHEALTHY
    elif seen_at is None or seen_at < heard:
        state = placement.SILENT
    elif draining:
        state = placement.DRAINING
    else:
        state = placement.FREE if ok else placement.NOT_READY
    return FleetGpu(pk, model, board_gb(memory_bytes), bus, state, node_id, node, cuda, simulated)


def snapshot(gpus: Iterable[FleetGpu]) -> placement.Snapshot:
    """The same as an immutable value for placement."""
    names: dict[str, str] = {}
    views: dict[str, list[placement.GpuView]] = {}
    for gpu in gpus:
        names[gpu.node_id] = gpu.node_name
        views.setdefault(gpu.node_id, []).append(placement.GpuView(gpu.id, gpu.pci_bus_id, gpu.state))
    return placement.Snapshot(
        nodes=tuple(placement.NodeView(id=node, name=names[node], gpus=tuple(found)) for node, found in views.items())
    )


def admits(gpu: FleetGpu, *, gpu_memory_gb: int | None, cuda_min: str | None) -> bool:
    """Does the GPU pass an order's filters? An unknown CUDA version passes no ``cuda_min``."""
    if gpu_memory_gb is not None and gpu.memory_gb < gpu_memory_gb:
        return False
    return cuda_min is None or _version(gpu.cuda_version) >= _version(cuda_min)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())
