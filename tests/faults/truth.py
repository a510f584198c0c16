"""What must hold whatever has happened: no lease or device lost or doubled, money exact, nothing left over.

Everything is read past the portal: from its database and from the engines.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scripts.demolib.renter import Renter
    from tests.rig.stack import Stack
    from tests.rig.stack_node import StackNode

OVER = ("ended", "interrupted")


def assert_whole(stack: Stack) -> None:
    """All of it, now. Nodes must be in contact; leases may run."""
    assert_capacity(stack)
    assert_containers(stack)
    assert_money(stack)


def assert_capacity(stack: Stack) -> None:
    """Slots and allocations say the same; what is over holds nothing."""
    taken = stack.query(
        "select s.id, s.used_milli, coalesce(sum(a.milli), 0) from nodes_gpuslot s left join rental_allocation a"
        " on a.slot_id = s.id and a.released_at is null group by s.id, s.used_milli"
    )
    assert [row for row in taken if row[1] != row[2]] == []
    assert [row for row in taken if row[1] > 1000] == []  # a whole slot
    assert stack.query(
        "select l.id, l.state from rental_allocation a join rental_lease l on l.id = a.lease_id"
        " where a.released_at is null and l.state in (?, ?)", *OVER
    ) == []  # fmt: skip


def assert_containers(stack: Stack) -> None:
    """Every running lease has one container, on its own node; no node has one of a lease that does not run."""
    wanted = Counter(
        (node_id, lease_id)
        for lease_id, node_id in stack.query("select id, node_id from rental_lease where state = ?", "running")
    )
    found = Counter((node.node_id, lease_id) for node in stack.nodes for lease_id, _ in node.containers())
    assert found == wanted


def assert_money(stack: Stack) -> None:
    """The books agree; each closed segment is one ledger line; none overlaps another of its lease; no hold is left."""
    stack.portal.manage("check_ledger")
    posted = stack.query(
        "select s.id, s.ticks, coalesce(sum(e.ticks), 0) from rental_usagesegment s left join billing_ledgerentry e"
        " on e.source = 'segment:' || s.id where s.ticks is not null group by s.id, s.ticks"
    )
    assert [row for row in posted if row[1] + row[2] != 0] == []
    assert stack.query(
        "select a.lease_id from rental_usagesegment a join rental_usagesegment b on a.lease_id = b.lease_id"
        " and a.id < b.id and a.start < b.end and b.start < a.end"
    ) == []  # fmt: skip
    assert stack.query(
        "select h.lease_id from billing_hold h join rental_lease l on l.id = h.lease_id"
        " where h.released_at is null and l.state in (?, ?)", *OVER
    ) == []  # fmt: skip


def assert_receipt_is_whole(renter: Renter, lease_id: str) -> dict[str, Any]:
    """The lines follow each other without a hole and sum to the ledger, to the tick; the receipt."""
    receipt = renter.call("GET", f"leases/{lease_id}/receipt")
    stretches = sorted([*receipt["lines"], *receipt["gaps"]], key=lambda line: line["start"])
    assert [line["end"] for line in stretches[:-1]] == [line["start"] for line in stretches[1:]]
    assert sum(line["ticks"] for line in receipt["lines"]) == receipt["total_ticks"] == receipt["ledger_ticks"]
    return receipt


def reasons(receipt: dict[str, Any]) -> set[str]:
    """Why stretches of it were not charged."""
    return {gap["reason"] for gap in receipt["gaps"]}


def nothing_left(node: StackNode, lease_id: str) -> bool:
    """Whether the machine has nothing of this lease any more."""
    return not any(node.left_of(lease_id).values())
