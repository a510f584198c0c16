"""What rental does when other apps tell of a change. Connected in rental/apps.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.dispatch import receiver

from nodes import broker
from nodes.signals import gpu_lost, ssh_seen
from portal.actor import Actor
from portal.signals import membership_changed, ssh_keys_changed, tenant_suspended
from rental import endings, live, ssh_activity
from rental.models import Lease
from rental.states import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nodes.models import Gpu, Node, SshEvent
    from portal.models import User


@receiver(ssh_keys_changed, dispatch_uid="rental.wake_for_keys")
def wake_for_keys(*, user: User, tenant_ids: Sequence[str] | None = None, **_: Any) -> None:
    """The nodes of the leases this user's keys open fetch the keys again, and drop a removed one within seconds.

    ``tenant_ids`` names tenants the user may have left: no membership leads to their leases any more.
    """
    meant = Lease.objects.visible_to(user) if tenant_ids is None else Lease.objects.filter(tenant_id__in=tenant_ids)
    opened = meant.filter(state__in=[State.ASSIGNED, State.STARTING, State.RUNNING], node__isnull=False)
    for node_id, lease_id in opened.order_by("pk").values_list("node_id", "pk"):
        if node_id:
            broker.wake(node_id=node_id, lease_id=lease_id)


@receiver(membership_changed, dispatch_uid="rental.judge_watchers")
def judge_watchers(*, tenant_id: str, **_: Any) -> None:
    """Streams of the tenant judge again who may look, now rather than within 15 s."""
    live.publish_tenant(tenant_id)


@receiver(gpu_lost, dispatch_uid="rental.end_on_failed_gpu")
def end_on_failed_gpu(*, gpu: Gpu, **_: Any) -> None:
    """Its leases end; others on the node go on."""
    for lease_id in endings.on_failed_gpus().filter(allocations__slot__gpu=gpu).values_list("pk", flat=True):
        endings.end_on_failed_gpu(lease_id=lease_id, actor=Actor.system("gpus"))


@receiver(tenant_suspended, dispatch_uid="rental.end_for_suspension")
def end_for_suspension(*, tenant_id: str, **_: Any) -> None:
    """Its leases end; nothing else follows from lifting the suspension than that it may order again."""
    for lease_id in endings.of_suspended_tenants().filter(tenant=tenant_id).values_list("pk", flat=True):
        endings.end_for_suspension(lease_id=lease_id, actor=Actor.system("accounts"))


@receiver(ssh_seen, dispatch_uid="rental.note_ssh")
def note_ssh(*, node: Node, events: Sequence[SshEvent], **_: Any) -> None:
    """Keys learn when they were last used, and open pages show who came in."""
    ssh_activity.note(node=node, events=events)
