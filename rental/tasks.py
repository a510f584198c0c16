"""The sweeps: what is due is found by its row, and each row is one service call in its own transaction.

Any of them may run twice, late, or at the same time as itself: the services look again under the lease's lock.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

from celery import shared_task
from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from nodes import broker
from nodes.inventory import retire_free_gpus
from nodes.models import Node
from portal import presence
from portal.actor import Actor
from portal.errors import DomainError
from rental import endings, funds, idle_services, lifecycle, notices, people, run_out, services
from rental.models import Lease
from rental.states import BEFORE_READY, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from django.db.models import QuerySet

logger = logging.getLogger(__name__)

REWAKE_AFTER_S = 5
AT_ONCE: Final = 10  # leases of one account that end in one transaction; its orders wait meanwhile


@shared_task
def sweep_deadlines() -> None:
    """Running leases past their deadline -> stopping (``max_duration``, or ``funds`` when the spend cap set it)."""
    for lease_ids in _by_account(Lease.objects.past_deadline(timezone.now())):
        try:
            _end_due(lease_ids)
        except Exception:  # logged with its trace; the next ones must not wait for a mended fault
            logger.exception("deadlines: %s failed", ", ".join(lease_ids))


@transaction.atomic
def _end_due(lease_ids: list[str]) -> None:
    """One transaction for some leases of one account: most of the time of each would go into its commit."""
    actor = Actor.system("deadlines")
    for lease in services.take_due(lease_ids=lease_ids):
        _one("deadlines", lease.pk, partial(_end, lease, actor))


@transaction.atomic
def _end(lease: Lease, actor: Actor) -> None:  # all of it or nothing, whatever becomes of the others
    services.end_at_deadline(lease_id=lease.pk, actor=actor, locked=lease)


def _by_account(leases: QuerySet[Lease]) -> Iterator[list[str]]:
    """Ids in groups of one account, since two accounts are never locked by one transaction (docs/concurrency.md)."""
    rows = list(leases.order_by("tenant_id", "currency", "pk").values_list("tenant_id", "currency", "pk"))
    for _, group in groupby(rows, key=lambda row: row[:2]):
        mine = [pk for _, _, pk in group]
        for start in range(0, len(mine), AT_ONCE):
            yield mine[start : start + AT_ONCE]


@shared_task
def sweep_unanswered() -> None:
    """Ordered and not ready for too long -> stopping (``failed_launch``); not picked up yet: the node is woken."""
    now = timezone.now()
    if _receiving_before(now - timedelta(seconds=settings.BOOT_GRACE_S)):
        due = services.overdue_to_start(now)
        _each("waiting", due, lambda lease_id, actor: services.end_unanswered(lease_id=lease_id, actor=actor))
    waiting = Lease.objects.filter(
        state=State.ASSIGNED, assigned_at__lt=now - timedelta(seconds=REWAKE_AFTER_S), node__revoked_at__isnull=True
    )
    for node_id, lease_id in waiting.values_list("node_id", "pk"):
        if node_id:
            broker.wake(node_id=node_id, lease_id=lease_id)


@shared_task
def sweep_silence() -> None:
    """Live leases nobody vouched for during SILENCE_S of our own receiving -> interrupted -> ended (``node_lost``).

    A stopping lease waits for its node, unless that was revoked and will never report.
    """
    limit = services.silence_limit(timezone.now())
    if not _receiving_before(limit - timedelta(seconds=settings.BOOT_GRACE_S)):
        return
    silent = Lease.objects.filter(
        Q(state=State.RUNNING, confirmed_at__lt=limit)
        | Q(state__in=BEFORE_READY, assigned_at__lt=limit, node__last_seen_at__lt=limit)
        | Q(state=State.STOPPING, stop_requested_at__lt=limit, node__revoked_at__lt=limit)
    )
    detail = f"Nothing heard from the node for {settings.SILENCE_S // 60} minutes."
    _each(
        "silence",
        silent,
        lambda lease_id, actor: services.lose_lease(lease_id=lease_id, actor=actor, unheard_since=limit, detail=detail),
    )
    _free_what_revoked_nodes_held(limit)


@shared_task
def sweep_holds() -> None:
    """Running leases: holds rolled forward; those the balance no longer pays for -> stopping (``funds``)."""
    running = Lease.objects.filter(state=State.RUNNING)
    _each("holds", running, lambda lease_id, actor: funds.roll_hold(lease_id=lease_id, actor=actor))


@shared_task
def sweep_barred() -> None:
    """Leases on a failed GPU (``failed_gpu``) or of a suspended tenant (``tenant_suspended``) whose end was missed."""
    failed, barred = endings.on_failed_gpus(), endings.of_suspended_tenants()
    _each("gpus", failed, lambda lease_id, actor: endings.end_on_failed_gpu(lease_id=lease_id, actor=actor))
    _each("accounts", barred, lambda lease_id, actor: endings.end_for_suspension(lease_id=lease_id, actor=actor))


@shared_task
def sweep_run_out() -> None:
    """Running leases that end soon, by time or money: warned; warnings that are not true any more are taken back."""
    actor = Actor.system(run_out.ACTOR)
    for change in run_out.look(timezone.now()):
        _one("run-out", change.lease_id, partial(run_out.settle, change=change, actor=actor))


@shared_task
def sweep_abandoned() -> None:
    """Leases of tenants without an active member -> stopping (``operator``): ordered while the account was closed."""
    _each("accounts", people.abandoned(), lambda lease_id, actor: people.stop_abandoned(lease_id=lease_id, actor=actor))


@shared_task
def sweep_idle() -> None:
    """Running leases without use: warned, then -> stopping (``idle``); a warning that is not true any more goes."""
    due = Lease.objects.filter(pk__in=idle_services.due(timezone.now()))
    _each("idle", due, lambda lease_id, actor: idle_services.settle(lease_id=lease_id, actor=actor))


@shared_task
def mail_notice(notice_id: str) -> None:
    """A new warning is mailed; one that was mailed already is left alone."""
    notices.mail(notice_id=notice_id)


@shared_task
def sweep_notices() -> None:
    """Warnings whose mail is late, because no broker took the message or no mail server answered, are mailed."""
    for notice_id in notices.unmailed(timezone.now()):
        notices.mail(notice_id=notice_id)


def _each(part: str, leases: QuerySet[Lease], act: Callable[[str, Actor], object]) -> None:
    """``act`` on each lease; one that cannot be helped now does not keep the others waiting."""
    actor = Actor.system(part)
    for lease_id in list(leases.order_by("pk").values_list("pk", flat=True)):
        _one(part, lease_id, partial(act, lease_id, actor))


def _one(part: str, lease_id: str, act: Callable[[], object]) -> None:
    try:
        act()
    except DomainError as error:
        logger.info("%s: %s left as it is (%s)", part, lease_id, error.code)
    except Exception:  # logged with its trace; the next row must not wait for a mended fault
        logger.exception("%s: %s failed", part, lease_id)


def _receiving_before(moment: datetime) -> bool:
    """Has the portal been receiving since before ``moment``? What it could not hear is nobody's silence."""
    since = presence.receiving_since()
    return since is not None and since < moment


def _free_what_revoked_nodes_held(limit: datetime) -> None:
    """A revoked node never reports. Once its agent must have stopped everything by its own clock, its GPUs may move."""
    over = Lease.objects.filter(
        state=State.ENDED, ended_at__lt=limit, node__revoked_at__lt=limit, allocations__released_at__isnull=True
    ).exclude(allocations=None)
    nodes = set()
    for lease_id, node_id in over.distinct().values_list("pk", "node_id"):
        lifecycle.free_capacity(lease_id=lease_id)
        nodes.add(node_id)
    for node in Node.objects.filter(pk__in=nodes):
        retire_free_gpus(node=node)
