"""Which devices an order gets. Pure functions over a snapshot: no Django, no clock, no input or output.

The caller reads the fleet once, asks here, and takes what is named by conditional UPDATE; when somebody was faster it
asks again with a fresh snapshot. Everything a decision depends on is in the snapshot, so it can be replayed.
"""

from rental.placement.types import (
    BUSY,
    DRAINING,
    FREE,
    NOT_READY,
    SILENT,
    UNHEALTHY,
    Decision,
    GpuView,
    NodeView,
    Reason,
    Request,
    Snapshot,
)
from rental.placement.whole import place, reasons_for

__all__ = [
    "BUSY",
    "DRAINING",
    "FREE",
    "NOT_READY",
    "SILENT",
    "UNHEALTHY",
    "Decision",
    "GpuView",
    "NodeView",
    "Reason",
    "Request",
    "Snapshot",
    "place",
    "reasons_for",
]
