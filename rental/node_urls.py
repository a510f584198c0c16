"""Routes of the node API under /api/node/v1/ that belong to leases."""

from django.urls import path

from rental import node_api

urlpatterns = [
    path("heartbeat", node_api.Heartbeat.as_view(), name="node-heartbeat"),
    path("desired", node_api.Desired.as_view(), name="node-desired"),
    path("leases/<str:lease_id>/report", node_api.LeaseReport.as_view(), name="node-lease-report"),
]
