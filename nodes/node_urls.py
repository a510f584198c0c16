"""Routes of the node API under /api/node/v1/ that belong to hardware."""

from django.urls import path

from nodes import api

urlpatterns = [
    path("enrol", api.Enrol.as_view(), name="node-enrol"),
    path("inventory", api.Inventory.as_view(), name="node-inventory"),
    path("preflight", api.Preflight.as_view(), name="node-preflight"),
    path("ssh-events", api.SshEvents.as_view(), name="node-ssh-events"),
]
