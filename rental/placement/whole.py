"""Whole GPUs, best fit: the node that keeps the fewest free GPUs, so that large groups stay for large orders."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from collections.abc import Sequence

# One GPU, several GPUs.
SENTENCES = {
    BUSY: ("1 is leased", "{n} are leased"),
    DRAINING: ("1 is on a node that takes no new leases", "{n} are on nodes that take no new leases"),
    SILENT: ("1 is on a node that does not answer", "{n} are on nodes that do not answer"),
    NOT_READY: ("1 is on a node that is not ready yet", "{n} are on nodes that are not ready yet"),
    UNHEALTHY: ("1 is out of service", "{n} are out of service"),
}


def place(snapshot: Snapshot, request: Request) -> Decision:
    """The GPUs to take, or the reasons why none can be.

    Fewest free GPUs left on the node wins, then the node's name and id; on the node, the lowest PCI addresses. The
    answer depends on nothing but the content of the snapshot, not on its order.
    """
    fitting = [(node, free) for node in snapshot.nodes if len(free := _free(node)) >= request.gpu_count]
    if not fitting:
        return Decision(node_id=None, reasons=reasons_for(snapshot.nodes, request.gpu_count))
    node, free = min(fitting, key=lambda pair: (len(pair[1]), pair[0].name, pair[0].id))
    return Decision(node_id=node.id, gpu_ids=tuple(gpu.id for gpu in free[: request.gpu_count]))


def reasons_for(nodes: Sequence[NodeView], gpu_count: int) -> tuple[Reason, ...]:
    """Why ``gpu_count`` GPUs cannot be had from these nodes now: the best group's size, then what holds the rest."""
    gpus = [gpu for node in nodes for gpu in node.gpus]
    if not gpus:
        return (Reason("none_installed", 0, "there is no such GPU in the fleet"),)
    found = []
    largest_group = max(len(node.gpus) for node in nodes)
    largest_free = max(len(_free(node)) for node in nodes)
    if largest_group < gpu_count:
        found.append(Reason("group_too_small", largest_group, f"the largest node has {largest_group} of them"))
    elif 0 < largest_free < gpu_count:
        found.append(Reason("free_group_too_small", largest_free, f"the largest free group is {largest_free}"))
    counts = Counter(gpu.state for gpu in gpus)
    found.extend(
        Reason(state, counts[state], one if counts[state] == 1 else many.format(n=counts[state]))
        for state, (one, many) in SENTENCES.items()
        if counts[state]
    )
    return tuple(found)


def _free(node: NodeView) -> list[GpuView]:
    return sorted((gpu for gpu in node.gpus if gpu.state == FREE), key=lambda gpu: (gpu.pci_bus_id, gpu.id))
