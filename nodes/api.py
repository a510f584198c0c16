"""The node API that belongs to hardware: enrol, inventory, preflight, SSH events. Heartbeat and leases are rental's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils import timezone
from rest_framework import status
from rest_framework.response import Response
from rest_framework.views import APIView

from nodes import services, ssh_events
from nodes.authentication import NodeView, node_of
from portal import rate_limits
from portal.actor import client_ip

if TYPE_CHECKING:
    from rest_framework.request import Request


class Enrol(APIView):
    """``POST enrol``: a machine shows its one-time token and becomes a node."""

    authentication_classes = ()
    permission_classes = ()
    schema = None

    def post(self, request: Request) -> Response:
        """201 with the node's secrets, never to be stored by anything between us and the node."""
        try:
            answer = services.enrol(payload=request.data, peer_ip=client_ip(request))
        except services.EnrolmentTokenInvalid:
            rate_limits.take(rate_limits.WRONG_TOKENS, rate_limits.place_of(request))
            raise
        return Response(answer, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})


class Inventory(NodeView):
    """``POST inventory``: what the machine is and which GPUs it has."""

    def post(self, request: Request) -> Response:
        """200 ``{}``."""
        services.record_inventory(node=node_of(request), payload=request.data)
        return Response({})


class Preflight(NodeView):
    """``POST preflight``: whether a container with a GPU works there."""

    def post(self, request: Request) -> Response:
        """200 ``{}``."""
        services.record_preflight(node=node_of(request), payload=request.data)
        return Response({})


class SshEvents(NodeView):
    """``POST ssh-events``: what its SSH gateway saw."""

    def post(self, request: Request) -> Response:
        """200 ``{}``."""
        ssh_events.record(node=node_of(request), payload=request.data, now=timezone.now())
        return Response({})
