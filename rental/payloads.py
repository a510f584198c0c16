"""What an agent may say about leases, field by field; built on the readers of nodes/payloads.py.

Free text comes from images and engines: it is shortened and cleaned, never refused, or its report would be repeated for
ever.
"""

from __future__ import annotations

from typing import Any, Final

from rest_framework import serializers

from nodes.payloads import GPU_UUID, MAX_BYTES, Payload, Text, Truth, Whole, read
from rental import idle

__all__ = ["EVENTS", "HeartbeatLeasesIn", "ReportIn", "read"]

EVENTS: Final = (
    "pulling", "starting", "started", "ready", "failed", "exited", "deadline", "stopped", "cleaned", "cleaning_failed",
    "ssh_down", "ssh_up",
)  # fmt: skip
FAILURES: Final = ("failed_image", "failed_gpu", "failed_launch")
MAX_LEASES: Final = 1024
MAX_TEXT: Final = 500
MAX_SECONDS: Final = 10_000_000


class Said(Text):
    """Text for people: cut to 500 characters, control characters replaced (a NUL is no text to PostgreSQL)."""

    def __init__(self) -> None:
        super().__init__(1_000_000)
        # DRF's own checks of length and NUL would refuse what is mended below.
        self.validators = []

    def to_internal_value(self, data: Any) -> str:
        """The cleaned text; anything but a string is refused."""
        if not isinstance(data, str):
            self.fail("invalid")
        return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in data[:MAX_TEXT]).strip()


class StepIn(Payload):
    """One step of cleaning."""

    name = Text(64, required=True)
    ok = Truth()
    detail = Said()


class Seconds(serializers.FloatField):
    """A JSON number of seconds, not negative."""

    def to_internal_value(self, data: Any) -> float:
        """Refuse text and truths; NaN and infinity are no numbers of JSON."""
        if isinstance(data, bool) or not isinstance(data, int | float) or not 0 <= data <= MAX_SECONDS:
            raise serializers.ValidationError(f"a number from 0 to {MAX_SECONDS} is accepted")
        return float(data)


class EvidenceIn(Payload):
    """What a report proves; which fields are there depends on the event."""

    devices_seen = serializers.ListField(child=Text(64, required=True), max_length=64, required=False)
    devices_source = Text(32, required=False)
    keys_seen = serializers.ListField(child=Text(128, required=True), max_length=10_000, required=False)
    since_s = Seconds(required=False)
    why = Said()
    ssh_ms = Whole(required=False, allow_null=True, min_value=0, max_value=10_000_000)
    exit_code = Whole(required=False, allow_null=True, min_value=-1_000_000, max_value=1_000_000)
    oom_killed = Truth(required=False, allow_null=True)
    killed = Truth(required=False, allow_null=True)
    steps: serializers.ListSerializer[Any] = serializers.ListSerializer(child=StepIn(), max_length=64, required=False)
    quarantine = serializers.ListField(
        child=Text(64, required=True, form=GPU_UUID, like="GPU-8f3a…, as NVML gives it"), max_length=64, required=False
    )

    def to_internal_value(self, data: object) -> dict[str, Any]:
        """What was said; what was not leaves no trace in the lease's evidence."""
        return {name: value for name, value in super().to_internal_value(data).items() if value != ""}


class ReportIn(Payload):
    """Body of ``POST leases/<id>/report``."""

    generation = Whole(min_value=0, max_value=2**31 - 1)
    event = serializers.ChoiceField(choices=EVENTS)
    detail = Said()
    container_id = Text(64)
    failure = serializers.ChoiceField(choices=("", *FAILURES), required=False, allow_null=True, default="")
    evidence = EvidenceIn(required=False, allow_null=True, default=dict)


class ActivityIn(serializers.Field[Any, Any, Any, Any]):
    """What a lease did since the last heartbeat: ``{"covers_s": …}`` and a value per signal that was named.

    A value that is none becomes null, a signal that could not be read: that counts as use, while refusing the heartbeat
    would cost every lease of the node its confirmation.
    """

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        """The named fields, each a finite number of a possible size, a truth, or None."""
        said = data if isinstance(data, dict) else dict.fromkeys(idle.FIELDS[signal] for signal in idle.WHOLE_GPU)
        names = {idle.FIELDS[signal]: signal for signal in idle.Signal}
        known = {name: _value(said[name], event=names[name] in idle.EVENTS) for name in names if name in said}
        return {"covers_s": _value(said.get("covers_s"), event=False), **known}


def _value(value: Any, *, event: bool) -> float | bool | None:
    if event:
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if 0 <= value <= MAX_BYTES else None  # false for NaN, too


class HeldLeaseIn(Payload):
    """One lease of a heartbeat. Newer agents may know more phases; only ``running`` has a meaning here."""

    id = Text(40, required=True)
    generation = Whole(min_value=0, max_value=2**31 - 1)
    phase = Text(32)
    container_id = Text(64)
    activity = ActivityIn(required=False, allow_null=True, default=None)


class HeartbeatLeasesIn(Payload):
    """The part of a heartbeat that is rental's."""

    known = ("boot_id", "clock", "gpus")
    agent_run = Text(64)
    leases: serializers.ListSerializer[Any] = serializers.ListSerializer(
        child=HeldLeaseIn(), max_length=MAX_LEASES, required=False, default=list
    )
