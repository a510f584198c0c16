"""What the API reads and writes about rentals. Orders are parsed by rental/requests.py, which the pages use too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.utils import timezone
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from billing import money
from billing.models import Plan
from portal.serializers import StrictCharField, StrictSerializer
from rental import connect, idle, idle_shown, metering
from rental.models import Lease, LeaseEvent, device_uuids
from rental.quotes import Quote  # at run time: drf-spectacular reads the methods' annotations
from rental.requests import MAX_GPUS
from rental.states import EndReason, State

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rental.receipts import Receipt

Facts = dict[str, Any]
OFF: Final = "off"


def idle_timeout(seconds: int | None) -> int | str:
    """An idle limit as it is asked for: none is "off", since null stands for the default."""
    return OFF if seconds is None else seconds


# --- offers and quotes ----------------------------------------------------------------------------------------------


class OffersIn(StrictSerializer):
    """Filters of the catalog."""

    gpu_model = serializers.CharField(required=False, max_length=96, help_text="As NVML names it.")
    gpu_count = serializers.IntegerField(required=False, default=1, min_value=1, max_value=MAX_GPUS)
    gpu_memory_gb = serializers.IntegerField(required=False, min_value=1, max_value=10_000, help_text="Per GPU.")
    plan = serializers.ChoiceField(required=False, choices=[Plan.ON_DEMAND.value, Plan.SPOT.value])
    max_price_micros_per_hour = serializers.IntegerField(required=False, min_value=1, help_text="Per GPU.")
    cuda_min = serializers.RegexField(r"^\d{1,3}\.\d{1,3}$", required=False, help_text="For example 12.4.")
    only_free = serializers.BooleanField(required=False, default=False)


class ReasonOut(serializers.Serializer[Any]):
    """Why nothing is free."""

    code = serializers.CharField()
    count = serializers.IntegerField()
    text = serializers.CharField()


class OfferOut(serializers.Serializer[Any]):
    """A line of the catalog."""

    id = serializers.CharField()
    gpu_model = serializers.CharField()
    short_name = serializers.CharField()
    gpu_memory_gb = serializers.IntegerField(help_text="Per GPU.")
    free_count = serializers.IntegerField(help_text="GPUs free now, on all nodes.")
    total_count = serializers.IntegerField()
    max_gpu_count = serializers.IntegerField(help_text="Most GPUs of one lease: those of the largest node.")
    max_free_count = serializers.IntegerField(help_text="Most GPUs of one lease that could start now.")
    simulated = serializers.BooleanField()
    currency = serializers.CharField()
    prices = serializers.DictField(child=serializers.IntegerField(), help_text="Plan → µ per GPU and hour.")
    reasons = ReasonOut(many=True)


class OffersOut(serializers.Serializer[Any]):
    """The catalog."""

    results = OfferOut(many=True)


IDLE_TIMEOUT = {"oneOf": [{"type": "integer", "minimum": 1}, {"type": "string", "enum": [OFF]}]}


@extend_schema_field(IDLE_TIMEOUT)
class IdleTimeoutIn(serializers.Field[Any, Any, Any, Any]):
    """Seconds without use, or ``"off"`` where the portal allows it."""


class QuoteIn(StrictSerializer):
    """An order to price. Described here for the API document; rental/requests.py checks it."""

    gpu_model = serializers.CharField(max_length=96)
    gpu_count = serializers.IntegerField(required=False, default=1, min_value=1, max_value=MAX_GPUS)
    gpu_memory_gb = serializers.IntegerField(required=False, allow_null=True, help_text="Per GPU, at least.")
    cuda_min = serializers.CharField(required=False, allow_null=True)
    plan = serializers.ChoiceField(required=False, choices=[Plan.ON_DEMAND.value, Plan.SPOT.value])
    priority = serializers.IntegerField(required=False, allow_null=True)
    when = serializers.ChoiceField(required=False, choices=["now"])
    max_duration_s = serializers.IntegerField(required=False, allow_null=True, help_text="From ready on.")
    inactive_timeout_s = IdleTimeoutIn(required=False, allow_null=True, help_text="null: 1800. 0 is refused.")
    spend_cap_micros = serializers.IntegerField(required=False, allow_null=True)
    max_price_micros_per_hour = serializers.IntegerField(required=False, allow_null=True, help_text="Per GPU.")
    image = serializers.CharField(required=False, allow_null=True)
    name = serializers.CharField(required=False, allow_null=True, max_length=80)
    ssh_key_ids = serializers.ListField(
        child=serializers.CharField(), required=False, allow_null=True, help_text="null: all keys of the tenant."
    )


class QuoteOut(serializers.Serializer["Quote"]):
    """A price that holds until ``expires_at``; ``quote`` is what orders it."""

    quote = serializers.CharField(source="token")
    id = serializers.CharField()
    price_micros_per_hour = serializers.IntegerField(help_text="Per GPU.")
    units = serializers.IntegerField(help_text="GPUs charged for.")
    total_micros_per_hour = serializers.IntegerField()
    currency = serializers.CharField()
    hold_micros = serializers.SerializerMethodField(help_text="Set aside at order.")
    most_micros = serializers.SerializerMethodField(help_text="What it can cost at most.")
    max_duration_s = serializers.IntegerField(source="longest_s", help_text="Less when the spend cap ends it earlier.")
    inactive_timeout_s = serializers.SerializerMethodField(
        help_text="Released after so long without use: what was asked, or the portal's limit if that is less."
    )
    inactive_timeout_most_s = serializers.SerializerMethodField(help_text="The portal's limit.")
    expires_at = serializers.DateTimeField()
    available = serializers.BooleanField(help_text="Whether it would fit at this moment.")
    reasons = ReasonOut(many=True)
    simulated = serializers.BooleanField()

    @extend_schema_field(IDLE_TIMEOUT)
    def get_inactive_timeout_s(self, quote: Quote) -> int | str:
        """Seconds, or "off"."""
        return idle_timeout(quote.request.inactive_timeout_s)

    def get_inactive_timeout_most_s(self, quote: Quote) -> int:
        """Seconds."""
        return int(settings.IDLE_TIMEOUT_MAX_S)

    def get_hold_micros(self, quote: Quote) -> int:
        """Whole µ, rounded up."""
        return money.micros_ceil(quote.hold_ticks)

    def get_most_micros(self, quote: Quote) -> int:
        """Whole µ, rounded up."""
        return money.micros_ceil(quote.most_ticks)


# --- leases ---------------------------------------------------------------------------------------------------------


class LeaseIn(StrictSerializer):
    """An order: the quote says everything else."""

    quote = StrictCharField(max_length=8192)
    name = StrictCharField(required=False, default="", allow_blank=True, max_length=80)


class ExtendIn(StrictSerializer):
    """Other limits for a lease. Described here for the API document; rental/extend.py checks it."""

    max_duration_s = serializers.IntegerField(required=False, help_text="From ready on.")
    spend_cap_micros = serializers.IntegerField(required=False, allow_null=True, help_text="null: no cap.")


class LeasesIn(StrictSerializer):
    """Which leases."""

    state = serializers.ChoiceField(required=False, choices=State.choices)
    q = serializers.CharField(required=False, max_length=80, help_text="A part of the name, or an id.")
    limit = serializers.CharField(required=False)
    cursor = serializers.CharField(required=False)


@dataclass(frozen=True)
class LeaseRow:
    """A lease with what a list reads for all its rows at once."""

    lease: Lease
    devices: list[str]
    seconds: int
    ticks: int


def lease_rows(leases: Sequence[Lease], now: datetime) -> list[LeaseRow]:
    """Rows for leases with ``node`` selected: two queries for any number of them, one while none was ready yet."""
    devices = device_uuids(leases)
    ready = [lease for lease in leases if lease.ready_at]  # nothing is charged before
    used = metering.used(ready, now) if ready else {}
    return [LeaseRow(lease, devices.get(lease.pk, []), *used.get(lease.pk, (0, 0))) for lease in leases]


def lease_answers(leases: Sequence[Lease], now: datetime) -> list[Facts]:
    """Leases as the API shows them; two queries for any number of them.

    One serializer serves every request, as it keeps nothing: making one copies its forty fields each time.
    """
    return [_LEASE.to_representation(row) for row in lease_rows(leases, now)]


def ssh_facts(lease: Lease) -> Facts | None:
    """How to get in; None before it has a node."""
    way = connect.door(lease)
    if way is None:
        return None
    return {
        "host": way.host,
        "port": way.port,
        "user": way.lease_id,
        "command": way.command,
        "host_key": way.host_key,
        "known_hosts": way.known_hosts,
    }


class NodeOut(serializers.Serializer[Any]):
    """Where it runs."""

    id = serializers.CharField()
    name = serializers.CharField()
    simulated = serializers.BooleanField()


class SshOut(serializers.Serializer[Any]):
    """How to get in."""

    host = serializers.CharField()
    port = serializers.IntegerField()
    user = serializers.CharField()
    command = serializers.CharField()
    host_key = serializers.CharField()
    known_hosts = serializers.CharField(help_text="A line for ~/.ssh/known_hosts.")


class SignalOut(serializers.Serializer[Any]):
    """One signal, as last measured."""

    name = serializers.ChoiceField(choices=[signal.value for signal in idle.Signal])
    value = serializers.JSONField(allow_null=True, help_text="A number, or whether it happened; null: not readable.")
    limit = serializers.FloatField(allow_null=True, help_text="Counts from here on; null: happening at all counts.")
    state = serializers.ChoiceField(choices=[reading.value for reading in idle.Reading])
    last_active_at = serializers.DateTimeField(allow_null=True)


class ActivityOut(serializers.Serializer[Any]):
    """What counted as use, and when the lease would be released for being idle."""

    state = serializers.ChoiceField(
        choices=[reading.value for reading in idle.Reading], allow_null=True, help_text="null: it does not run."
    )
    idle_since = serializers.DateTimeField(allow_null=True)
    release_at = serializers.DateTimeField(allow_null=True, help_text="Unless it is used; null while it is in use.")
    last = serializers.ChoiceField(
        choices=[since.value for since in idle.Since],
        help_text="What the idle clock runs from; ready: the grace after it.",
    )
    last_at = serializers.DateTimeField()
    signal = serializers.CharField(help_text="Which signal counted last; empty: a stretch that was not measured.")
    known = serializers.BooleanField(help_text="false: that signal could not be read.")
    sampled_at = serializers.DateTimeField()
    signals = SignalOut(many=True)


class LeaseOut(serializers.Serializer[Any]):
    """A lease."""

    id = serializers.CharField(source="lease.id")
    name = serializers.CharField(source="lease.name")
    tenant = serializers.CharField(source="lease.tenant_id")
    state = serializers.ChoiceField(source="lease.state", choices=State.choices)
    end_reason = serializers.ChoiceField(source="lease.end_reason", choices=EndReason.choices, allow_blank=True)
    end_detail = serializers.CharField(source="lease.end_detail")
    progress = serializers.CharField(source="lease.progress", help_text="What the node does now, before it is ready.")
    plan = serializers.ChoiceField(source="lease.plan", choices=Plan.choices)
    priority = serializers.IntegerField(source="lease.priority")
    gpu_model = serializers.CharField(source="lease.gpu_model")
    gpu_count = serializers.IntegerField(source="lease.gpu_count")
    gpu_memory_gb = serializers.IntegerField(source="lease.gpu_memory_gb", help_text="Per GPU.")
    image = serializers.CharField(source="lease.image")
    node = NodeOut(source="lease.node", allow_null=True)
    devices = serializers.ListField(child=serializers.CharField(), help_text="UUIDs it holds now.")
    container_id = serializers.CharField(source="lease.container_id")
    price_micros_per_hour = serializers.IntegerField(source="lease.price_micros_per_hour", help_text="Per GPU.")
    units = serializers.IntegerField(source="lease.units")
    total_micros_per_hour = serializers.IntegerField(source="lease.total_micros_per_hour")
    currency = serializers.CharField(source="lease.currency")
    max_duration_s = serializers.IntegerField(source="lease.max_duration_s")
    inactive_timeout_s = serializers.SerializerMethodField(help_text='Seconds, or "off".')
    spend_cap_micros = serializers.IntegerField(source="lease.spend_cap_micros", allow_null=True)
    requested_at = serializers.DateTimeField(source="lease.requested_at")
    assigned_at = serializers.DateTimeField(source="lease.assigned_at", allow_null=True)
    started_at = serializers.DateTimeField(source="lease.started_at", allow_null=True)
    ready_at = serializers.DateTimeField(source="lease.ready_at", allow_null=True)
    deadline_at = serializers.DateTimeField(source="lease.deadline_at", allow_null=True)
    kept_at = serializers.DateTimeField(source="lease.kept_at", allow_null=True)
    stop_requested_at = serializers.DateTimeField(source="lease.stop_requested_at", allow_null=True)
    ended_at = serializers.DateTimeField(source="lease.ended_at", allow_null=True)
    seconds_charged = serializers.IntegerField(source="seconds", help_text="So far.")
    ticks = serializers.IntegerField(help_text="So far, exact; 3600 ticks are 1 µ.")
    cost_micros = serializers.SerializerMethodField(help_text="So far, in whole µ, rounded up.")
    ssh = serializers.SerializerMethodField()
    activity = serializers.SerializerMethodField(help_text="What counted as use; null before the node's first sample.")

    @extend_schema_field(IDLE_TIMEOUT)
    def get_inactive_timeout_s(self, row: LeaseRow) -> int | str:
        """Seconds, or "off"."""
        return idle_timeout(row.lease.inactive_timeout_s)

    @extend_schema_field(ActivityOut(allow_null=True))
    def get_activity(self, row: LeaseRow) -> Facts | None:
        """What counted as use; null before the node's first sample."""
        use = idle_shown.shown(row.lease, timezone.now())
        return None if use is None else dict(_ACTIVITY.to_representation(use))

    def get_cost_micros(self, row: LeaseRow) -> int:
        """So far, in whole µ, rounded up."""
        return money.micros_ceil(row.ticks)

    @extend_schema_field(SshOut(allow_null=True))
    def get_ssh(self, row: LeaseRow) -> Facts | None:
        """How to get in; null before it has a node."""
        return ssh_facts(row.lease)


_LEASE: Final = LeaseOut()
_ACTIVITY: Final = ActivityOut()


class EventOut(serializers.ModelSerializer[LeaseEvent]):
    """A step of a lease, or a note when both states are the same."""

    class Meta:
        model = LeaseEvent
        fields = ["id", "at", "from_state", "to_state", "code", "detail", "actor_label"]


class ReceiptLineOut(serializers.Serializer[Any]):
    """A charged stretch ``[start, end)``."""

    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    seconds = serializers.IntegerField(help_text="Whole seconds charged.")
    units = serializers.IntegerField()
    price_micros_per_hour = serializers.IntegerField()
    ticks = serializers.IntegerField(help_text="seconds × units × price_micros_per_hour.")
    micros = serializers.CharField(help_text="µ with six decimals.")
    provisional = serializers.BooleanField(help_text="Still growing.")


class GapOut(serializers.Serializer[Any]):
    """A stretch that was not charged."""

    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    seconds = serializers.IntegerField()
    reason = serializers.CharField(source="gap")


class ReceiptOut(serializers.Serializer["Receipt"]):
    """What a lease cost."""

    lease = serializers.CharField(source="lease_id")
    currency = serializers.CharField()
    provisional = serializers.BooleanField()
    seconds = serializers.IntegerField()
    total_ticks = serializers.IntegerField(source="ticks", help_text="The sum of the lines, exactly.")
    total_micros = serializers.CharField(source="micros", help_text="µ with six decimals.")
    ledger_ticks = serializers.IntegerField(help_text="What has been taken from the balance: the same, once final.")
    lines = serializers.SerializerMethodField()
    gaps = serializers.SerializerMethodField()

    @extend_schema_field(ReceiptLineOut(many=True))
    def get_lines(self, receipt: Receipt) -> list[Facts]:
        """The charged stretches."""
        return list(ReceiptLineOut([line for line in receipt.lines if not line.gap], many=True).data)

    @extend_schema_field(GapOut(many=True))
    def get_gaps(self, receipt: Receipt) -> list[Facts]:
        """The stretches that were not charged, with the reason."""
        return list(GapOut([line for line in receipt.lines if line.gap], many=True).data)
