"""Background work on nodes."""

from celery import shared_task
from django.utils import timezone

from nodes import broker, ssh_events
from nodes.models import Node


@shared_task(name="nodes.tasks.assert_broker_users")
def assert_broker_users() -> None:
    """Make the broker's users what the database says: alive nodes have theirs, revoked ones have none.

    Repairs a broker that was restarted empty, or was away when a node enrolled or was revoked.
    """
    nodes = Node.objects.alive().exclude(broker_password_digest="").only("id", "broker_password_digest")
    gone = Node.objects.filter(revoked_at__isnull=False).values_list("pk", flat=True)
    broker.assert_users(nodes, gone=gone)


@shared_task(name="nodes.tasks.sweep_ssh_events")
def sweep_ssh_events() -> None:
    """Delete what SSH gateways saw too long ago; repeating is harmless."""
    ssh_events.delete_old(now=timezone.now())
