"""What rental does when other apps tell of a change. Connected in rental/apps.py."""

from __future__ import annotations

from typing import Any

from django.dispatch import receiver

from nodes import broker
from portal.models import User
from portal.signals import ssh_keys_changed
from rental.models import Lease
from rental.states import State


@receiver(ssh_keys_changed, dispatch_uid="rental.wake_for_keys")
def wake_for_keys(*, user: User, **_: Any) -> None:
    """The nodes of the leases this user's keys open fetch the keys again, and drop a removed one within seconds."""
    open_to_user = Lease.objects.visible_to(user).filter(
        state__in=[State.ASSIGNED, State.STARTING, State.RUNNING], node__isnull=False
    )
    for node_id, lease_id in open_to_user.order_by("pk").values_list("node_id", "pk"):
        if node_id:
            broker.wake(node_id=node_id, lease_id=lease_id)
