"""What SSH gateways of nodes saw: who logged in, where and when. Told by agents, kept a while, changed by nobody."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.db import transaction
from rest_framework import serializers

from nodes import payloads, signals
from nodes.models import SshEvent
from nodes.payloads import Payload, Prose, Text, Whole

if TYPE_CHECKING:
    from datetime import datetime

    from nodes.models import Node

MAX_EVENTS: Final = 200
MAX_AGE_S: Final = 30 * 86_400.0  # an older age is a clock that went wrong
MAX_COUNT: Final = 1 << 60
LEASE: Final = re.compile(r"ls-[A-Za-z0-9]{1,40}")
DELETED_AT_ONCE: Final = 5_000  # rows, so that a long backlog locks nothing for long


class AgeField(serializers.Field[float, Any, float, Any]):
    """Seconds as a JSON number; what is negative, endless or older than a month is brought into range."""

    def to_internal_value(self, data: object) -> float:
        """Refuse anything but a number."""
        if isinstance(data, bool) or not isinstance(data, int | float) or data != data:  # noqa: PLR0124  # NaN
            raise serializers.ValidationError("must be a number of seconds")
        return float(min(MAX_AGE_S, max(0.0, data)))


class SshEventIn(Payload):
    """One event. Kinds that are not known come from a newer agent and are left out."""

    id = serializers.UUIDField()
    age_s = AgeField()
    lease = Text(43, required=True, form=LEASE, like="ls-…")
    kind = Text(32, required=True)
    peer = Text(64)
    key = Text(80)
    session = Text(64)
    detail = Prose(200)
    bytes_in = Whole(min_value=0, max_value=MAX_COUNT, required=False, default=0)
    bytes_out = Whole(min_value=0, max_value=MAX_COUNT, required=False, default=0)


class SshEventsIn(Payload):
    """Body of ``POST ssh-events``."""

    events: serializers.ListSerializer[Any] = serializers.ListSerializer(child=SshEventIn(), max_length=MAX_EVENTS)


def record(*, node: Node, payload: Any, now: datetime) -> int:
    """Keep what is new of it; how many. ``now`` is the moment of receipt: the time of an event is that less its age."""
    said = [event for event in payloads.read(SshEventsIn, payload)["events"] if event["kind"] in SshEvent.Kind.values]
    with transaction.atomic():
        ids = [event["id"] for event in said]
        known = set(SshEvent.objects.filter(node=node, event_id__in=ids).values_list("event_id", flat=True))
        fresh = {event["id"]: _row(node, event, now) for event in said if event["id"] not in known}
        # Of two calls at once with the same events the second writes nothing.
        SshEvent.objects.bulk_create(fresh.values(), ignore_conflicts=True)
        if fresh:
            signals.send_after_commit(signals.ssh_seen, node=node, events=list(fresh.values()))
    return len(fresh)


def delete_old(*, now: datetime) -> int:
    """Delete what is older than the days they are kept; how many rows."""
    before, deleted = now - timedelta(days=settings.SSH_EVENTS_DAYS), 0
    while ids := list(SshEvent.objects.filter(at__lt=before).values_list("pk", flat=True)[:DELETED_AT_ONCE]):
        deleted += SshEvent.objects.filter(pk__in=ids).delete()[0]
    return deleted


def _row(node: Node, event: dict[str, Any], now: datetime) -> SshEvent:
    facts = {name: event[name] for name in ("kind", "peer", "key", "session", "detail", "bytes_in", "bytes_out")}
    at = now - timedelta(seconds=event["age_s"])
    return SshEvent(node=node, event_id=event["id"], lease_ref=event["lease"], at=at, **facts)
