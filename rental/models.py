"""Leases: who has which devices, since when, at what price, and what happened to them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from django.db import models
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from billing.models import Plan, PriceVersion
from nodes.models import GpuSlot, Node
from portal import ids
from portal.models import Tenant, User
from portal.ready import Ready
from rental.states import BEFORE_READY, LIVE, OPEN, RECORDED_GAPS, EndReason, Gap, State

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from django.db.models import QuerySet


class LeaseQuerySet(models.QuerySet["Lease"]):
    """Named questions about leases."""

    def visible_to(self, user: User) -> LeaseQuerySet:
        """Leases of the tenants this user belongs to. Everything a renter sees starts here."""
        return self.filter(tenant__memberships__user=user)

    def live(self) -> LeaseQuerySet:
        """A node is expected to know these."""
        return self.filter(state__in=LIVE)

    def open(self) -> LeaseQuerySet:
        """Not over yet."""
        return self.filter(state__in=OPEN)

    def past_deadline(self, now: datetime) -> LeaseQuerySet:
        """Running beyond their maximum duration."""
        return self.filter(state=State.RUNNING, deadline_at__lte=now)

    def overdue_to_start(self, before: datetime, pulling_before: datetime) -> LeaseQuerySet:
        """Ordered before that moment and still not ready.

        An image that came further since then is waited for, unless it was ordered before ``pulling_before``.
        """
        stands_still = models.Q(pulled_at=None) | models.Q(pulled_at__lt=before)
        return self.filter(
            stands_still | models.Q(requested_at__lt=pulling_before), state__in=BEFORE_READY, requested_at__lt=before
        )


class Lease(models.Model):
    """The contract: devices for a tenant, under one price snapshot and one policy."""

    id = models.CharField(primary_key=True, max_length=32, default=ids.lease_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="leases")
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    name = models.CharField(_("name"), max_length=80, blank=True)
    quote_id = models.CharField(max_length=32, unique=True, editable=False)

    state = models.CharField(_("state"), max_length=16, choices=State.choices, default=State.REQUESTED, editable=False)
    end_reason = models.CharField(_("end reason"), max_length=24, choices=EndReason.choices, blank=True, editable=False)
    end_detail = models.CharField(_("details"), max_length=500, blank=True, editable=False)
    progress = models.CharField(
        _("progress"), max_length=200, blank=True, editable=False, help_text="what the node does now"
    )

    # What was ordered.
    plan = models.CharField(_("plan"), max_length=16, choices=Plan.choices, default=Plan.ON_DEMAND)
    priority = models.PositiveSmallIntegerField(_("priority"), default=50)
    gpu_model = models.CharField(_("GPU model"), max_length=96)
    gpu_count = models.PositiveSmallIntegerField(_("GPUs"))
    gpu_memory_gb = models.PositiveIntegerField(_("memory per GPU, GB"))
    image = models.CharField(_("image"), max_length=300)
    ssh_key_ids = models.JSONField(
        _("SSH keys"), null=True, blank=True, help_text="null: all keys of the tenant's members"
    )
    max_duration_s = models.PositiveIntegerField(_("maximum duration, s"))
    inactive_timeout_s = models.PositiveIntegerField(_("idle timeout, s"), null=True, blank=True)
    spend_cap_micros = models.BigIntegerField(_("spend cap, µ"), null=True, blank=True)

    # The price it was ordered at; it never changes.
    price_version = models.ForeignKey(PriceVersion, on_delete=models.PROTECT, related_name="+")
    currency = models.CharField(_("currency"), max_length=3)
    price_micros_per_hour = models.BigIntegerField(_("µ per unit and hour"))
    units = models.PositiveIntegerField(_("units"), help_text="GPUs charged for")

    # Where it runs. A new generation is a new container; reports of an older one are refused.
    node = models.ForeignKey(Node, on_delete=models.PROTECT, null=True, related_name="leases")
    generation = models.PositiveIntegerField(default=0, editable=False)
    container_id = models.CharField(max_length=64, blank=True, editable=False)
    cpus_milli = models.PositiveIntegerField(default=0, editable=False)
    memory_bytes = models.BigIntegerField(default=0, editable=False)
    workspace_bytes = models.BigIntegerField(default=0, editable=False)
    evidence = models.JSONField(default=dict, editable=False, help_text="what the node proved: ready, cleaned")

    requested_at = models.DateTimeField(_("requested"), default=timezone.now, editable=False)
    assigned_at = models.DateTimeField(null=True, editable=False)
    pulled_at = models.DateTimeField(null=True, editable=False, help_text="its image last came further")
    started_at = models.DateTimeField(null=True, editable=False, help_text="Docker started the container")
    ready_at = models.DateTimeField(_("ready"), null=True, editable=False)
    deadline_at = models.DateTimeField(_("ends at the latest"), null=True, editable=False)
    confirmed_at = models.DateTimeField(null=True, editable=False, help_text="last moment the node vouched for it")
    kept_at = models.DateTimeField(
        null=True, editable=False, help_text="the renter asked to keep it; the idle clock restarts here"
    )
    stop_requested_at = models.DateTimeField(null=True, editable=False)
    ended_at = models.DateTimeField(_("ended"), null=True, editable=False)

    objects = LeaseQuerySet.as_manager()

    class Meta:
        verbose_name = _("lease")
        verbose_name_plural = _("leases")
        ordering = ["-requested_at", "-id"]
        indexes = [
            models.Index(fields=["tenant", "-requested_at"], name="lease_by_tenant"),
            models.Index(fields=["state", "deadline_at"], name="lease_by_deadline"),
            models.Index(fields=["node", "state"], name="lease_by_node"),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(state__in=[s.value for s in State]), name="lease_state_is_known"),
            models.CheckConstraint(
                condition=Q(end_reason__in=["", *(r.value for r in EndReason)]), name="lease_end_reason_is_known"
            ),
            models.CheckConstraint(condition=~Q(state="ended") | ~Q(end_reason=""), name="lease_ended_has_reason"),
            models.CheckConstraint(
                condition=Q(ended_at__isnull=False) | ~Q(state="ended"), name="lease_ended_has_time"
            ),
            models.CheckConstraint(
                condition=Q(ready_at__isnull=False) | ~Q(state="running"), name="lease_running_was_ready"
            ),
            models.CheckConstraint(
                condition=Q(deadline_at__isnull=False) | ~Q(state="running"), name="lease_running_has_deadline"
            ),
            models.CheckConstraint(condition=Q(gpu_count__gte=1), name="lease_has_gpus"),
            models.CheckConstraint(condition=Q(price_micros_per_hour__gt=0), name="lease_price_is_positive"),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def total_micros_per_hour(self) -> int:
        """What the whole lease costs per hour, µ."""
        return self.units * self.price_micros_per_hour


class LeaseEvent(models.Model):
    """One line of a lease's history: a step (``to_state`` differs from ``from_state``) or a note."""

    id = models.BigAutoField(primary_key=True)
    lease = models.ForeignKey(Lease, on_delete=models.CASCADE, related_name="events")
    at = models.DateTimeField(default=timezone.now, editable=False)
    from_state = models.CharField(max_length=16)
    to_state = models.CharField(max_length=16)
    code = models.CharField(max_length=32, help_text="what happened: requested, assigned, ready, released, …")
    detail = models.CharField(max_length=500, blank=True)
    actor_label = models.CharField(max_length=254, blank=True)
    data = models.JSONField(default=dict)

    class Meta:
        verbose_name = _("lease event")
        verbose_name_plural = _("lease events")
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.lease_id} {self.code}"


class LeaseNotice(models.Model):
    """A warning about a lease, given once: by mail, on open terminals, on its page. Written by rental/notices.py."""

    id = models.BigAutoField(primary_key=True)
    lease = models.ForeignKey(Lease, on_delete=models.CASCADE, related_name="notices")
    key = models.CharField(max_length=64, help_text="what makes a second one the same: run_out:15")
    kind = models.CharField(max_length=32)
    data = models.JSONField(default=dict, help_text="facts for the words; no secrets")
    at = models.DateTimeField(default=timezone.now, editable=False)
    mailed_at = models.DateTimeField(null=True, editable=False)
    void_at = models.DateTimeField(null=True, editable=False, help_text="no longer true; terminals and page forget it")

    class Meta:
        verbose_name = _("lease notice")
        verbose_name_plural = _("lease notices")
        ordering = ["id"]
        constraints = [models.UniqueConstraint(fields=["lease", "key"], name="notice_once_per_key")]
        indexes = [
            models.Index(fields=["at"], condition=Q(mailed_at__isnull=True), name="notice_to_be_mailed"),
        ]

    def __str__(self) -> str:
        return f"{self.lease_id} {self.key}"


class LeaseActivity(models.Model):
    """What counted as use of a lease, as far as samples of its node tell (rental/activity.py); absent before the first.

    Times are ours, at receipt. The sample's columns are written by heartbeats, the others by the sweep.
    """

    lease = models.OneToOneField(Lease, on_delete=models.CASCADE, primary_key=True, related_name="activity")
    sampled_at = models.DateTimeField(help_text="the last sample; what comes after is not known")
    uncovered_s = models.FloatField(default=0, help_text="time since active_at that no sample speaks of, s")
    active_at = models.DateTimeField(help_text="the last use, or unknown stretch; idleness is counted from here")
    active_signal = models.CharField(max_length=16, blank=True, help_text="what it was; empty: no sample covers it")
    active_known = models.BooleanField(default=True, help_text="false: the signal could not be read")
    signals = models.JSONField(default=dict, help_text="{signal: {value, state, active_at}} of the last sample")
    warned_for = models.DateTimeField(null=True, help_text="start of the idle stretch that was warned of")
    warned_at = models.DateTimeField(null=True)
    shadowed_for = models.DateTimeField(
        null=True, help_text="start of the idle stretch after which it would have been released (IDLE_MODE=shadow)"
    )

    class Meta:
        verbose_name = _("lease activity")
        verbose_name_plural = _("lease activity")

    def __str__(self) -> str:
        return f"{self.lease_id} {self.active_signal}"


class Allocation(models.Model):
    """A slot taken by a lease, from assignment until it came clean."""

    id = models.BigAutoField(primary_key=True)
    lease = models.ForeignKey(Lease, on_delete=models.PROTECT, related_name="allocations")
    generation = models.PositiveIntegerField()
    slot = models.ForeignKey(GpuSlot, on_delete=models.PROTECT, related_name="allocations")
    milli = models.PositiveSmallIntegerField(default=1000)
    taken_at = models.DateTimeField(default=timezone.now, editable=False)
    released_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("allocation")
        verbose_name_plural = _("allocations")
        constraints = [
            # One GPU is never sold twice, whatever the code above believes (case B01).
            models.UniqueConstraint(
                fields=["slot"], condition=Q(released_at__isnull=True, milli=1000), name="allocation_whole_slot_once"
            ),
            models.UniqueConstraint(
                fields=["lease", "slot"], condition=Q(released_at__isnull=True), name="allocation_once_per_lease"
            ),
            models.CheckConstraint(condition=Q(milli__gte=1, milli__lte=1000), name="allocation_milli_in_range"),
        ]

    def __str__(self) -> str:
        return f"{self.lease_id} {self.slot_id}"


class UsageSegment(models.Model):
    """A stretch ``[start, end)`` in which a lease was charged at one price. Open while ``end`` is null."""

    id = models.BigAutoField(primary_key=True)
    lease = models.ForeignKey(Lease, on_delete=models.PROTECT, related_name="segments")
    start = models.DateTimeField()
    end = models.DateTimeField(null=True, blank=True)
    units = models.PositiveIntegerField()
    price_micros_per_hour = models.BigIntegerField()
    seconds = models.PositiveIntegerField(null=True, blank=True, help_text="whole seconds charged, when closed")
    ticks = models.BigIntegerField(null=True, blank=True, help_text="seconds × units × price, when closed")

    class Meta:
        verbose_name = _("usage segment")
        verbose_name_plural = _("usage segments")
        ordering = ["start", "id"]
        constraints = [
            models.UniqueConstraint(fields=["lease", "start"], name="segment_once_per_start"),
            models.UniqueConstraint(fields=["lease"], condition=Q(end__isnull=True), name="segment_one_open_per_lease"),
            models.CheckConstraint(
                condition=Q(end__isnull=True) | Q(end__gte=F("start")), name="segment_ends_after_start"
            ),
            models.CheckConstraint(
                condition=Q(end__isnull=True, ticks__isnull=True, seconds__isnull=True)
                | Q(end__isnull=False, ticks__isnull=False, seconds__isnull=False),
                name="segment_closed_is_counted",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.lease_id} {self.start:%H:%M:%S}"


class UsageGap(models.Model):
    """A stretch ``[start, end)`` in which a running lease was not charged, and why. Open while ``end`` is null.

    Segments and gaps of a lease follow each other from ready to stop, without overlap (rental/lifecycle.py).
    """

    id = models.BigAutoField(primary_key=True)
    lease = models.ForeignKey(Lease, on_delete=models.PROTECT, related_name="gaps")
    start = models.DateTimeField()
    end = models.DateTimeField(null=True, blank=True)
    reason = models.CharField(max_length=16, choices=Gap.choices)
    detail = models.CharField(max_length=500, blank=True)

    class Meta:
        verbose_name = _("usage gap")
        verbose_name_plural = _("usage gaps")
        ordering = ["start", "id"]
        constraints = [
            models.UniqueConstraint(fields=["lease"], condition=Q(end__isnull=True), name="gap_one_open_per_lease"),
            models.UniqueConstraint(fields=["lease", "start"], name="gap_once_per_start"),
            models.CheckConstraint(condition=Q(end__isnull=True) | Q(end__gt=F("start")), name="gap_ends_after_start"),
            models.CheckConstraint(
                condition=Q(reason__in=[reason.value for reason in RECORDED_GAPS]), name="gap_reason_is_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.lease_id} {self.reason} {self.start:%H:%M:%S}"


def whole_seconds(start: datetime, end: datetime) -> int:
    """Charged seconds of ``[start, end)``: completed whole ones, never negative."""
    return max(0, (end - start) // timedelta(seconds=1))


def _held_by(leases: Collection[str]) -> QuerySet[Allocation, tuple[str, str]]:
    rows = Allocation.objects.filter(lease__in=leases, released_at__isnull=True)
    return rows.values_list("lease_id", "slot__gpu__uuid")


_HELD_BY_ONE: Final = Ready(lambda lease: _held_by([lease]), lease="?lease")


def device_uuids(leases: Iterable[Lease]) -> dict[str, list[str]]:
    """``{lease id: sorted UUIDs}`` of what each lease holds now, in one query."""
    ids = [lease.pk for lease in leases]
    rows = _HELD_BY_ONE.rows(lease=ids[0]) if len(ids) == 1 else _held_by(ids)
    found: dict[str, set[str]] = {}
    for lease_id, uuid in rows:
        found.setdefault(lease_id, set()).add(uuid)
    return {lease_id: sorted(uuids) for lease_id, uuids in found.items()}
