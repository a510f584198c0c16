"""The node API that belongs to leases: heartbeat, desired state, reports (docs/node-protocol.md)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from django.conf import settings
from django.utils import timezone
from rest_framework.response import Response

from nodes import services as nodes
from nodes.authentication import NodeView, node_of
from rental import desired, payloads, reports

if TYPE_CHECKING:
    from rest_framework.request import Request


class Heartbeat(NodeView):
    """``POST heartbeat``: the node lives, and vouches for what runs."""

    def post(self, request: Request) -> Response:
        """200 with our time and the leases that should not be there."""
        node = node_of(request)
        said = payloads.read(payloads.HeartbeatLeasesIn, request.data)
        # The first beat of an agent may come before it has looked at its engine; what it does not list proves nothing.
        settled = bool(said["agent_run"]) and node.agent_run == said["agent_run"]
        now, before = timezone.now(), node.last_seen_at
        nodes.record_heartbeat(node=node, payload=request.data)
        unknown = reports.confirm(
            node=node,
            leases=said["leases"],
            now=now,
            settled=settled and before is not None,
            # Beats of an agent come one after the other; a beat's time is left for one that was long on its way.
            listed_after=before and before - timedelta(seconds=settings.HEARTBEAT_S),
        )
        again = nodes.wants_inventory(node=node, now=now)
        return Response({"server_time": now, "unknown": unknown, "inventory": again})


class Desired(NodeView):
    """``GET desired[?lease=ls-…]``: what should exist on this node."""

    def get(self, request: Request) -> Response:
        """200; an empty list for a lease that should not exist there."""
        leases = desired.desired_leases(node_of(request), request.query_params.get("lease") or None)
        return Response({"server_time": timezone.now(), "leases": leases})


class LeaseReport(NodeView):
    """``POST leases/<id>/report``: something happened to a lease."""

    def post(self, request: Request, lease_id: str) -> Response:
        """200 with the lease's state; 404 for a lease of another node, 409 for another generation."""
        return Response(reports.handle(node=node_of(request), lease_id=lease_id, payload=request.data))
