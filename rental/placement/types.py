"""The values placement works on; all immutable, all compared by content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# What a GPU is to a new order. Only the first can be taken.
FREE: Final = "free"
BUSY: Final = "leased"
DRAINING: Final = "draining"
SILENT: Final = "silent"
NOT_READY: Final = "not_ready"
UNHEALTHY: Final = "unhealthy"


@dataclass(frozen=True)
class GpuView:
    """One whole GPU: the key it is taken by, its place on the bus, and what stands in the way (``FREE``: nothing)."""

    id: int
    pci_bus_id: str
    state: str


@dataclass(frozen=True)
class NodeView:
    """The GPUs of the wanted kind on one machine."""

    id: str
    name: str
    gpus: tuple[GpuView, ...]


@dataclass(frozen=True)
class Snapshot:
    """The fleet as it was read, already narrowed to what the order's filters admit."""

    nodes: tuple[NodeView, ...]


@dataclass(frozen=True)
class Request:
    """What is asked of placement: ``gpu_count`` whole GPUs of one node."""

    gpu_count: int

    def __post_init__(self) -> None:
        if self.gpu_count < 1:
            raise ValueError(f"gpu_count must be at least 1, not {self.gpu_count}")


@dataclass(frozen=True)
class Reason:
    """Why nothing fits: a stable code, how many GPUs it concerns, and a sentence."""

    code: str
    count: int
    text: str


@dataclass(frozen=True)
class Decision:
    """The node and its GPUs (in PCI order), or no node and the reasons."""

    node_id: str | None
    gpu_ids: tuple[int, ...] = ()
    reasons: tuple[Reason, ...] = ()
