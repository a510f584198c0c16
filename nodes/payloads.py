"""What an agent may say, field by field: lengths, ranges, forms. Nothing a node sends reaches a row unchecked.

A field that we do not know comes from a newer agent: it is ignored, and logged once per process.
"""

from __future__ import annotations

import ipaddress
import logging
import re
from typing import Any, Final

from rest_framework import serializers

from portal import problems
from portal.errors import InvalidInput

logger = logging.getLogger(__name__)

MAX_GPUS: Final = 64
MAX_BYTES: Final = 1 << 60
MAX_CHECKS: Final = 32
LABEL: Final = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
HOST_NAME: Final = re.compile(rf"(?=.{{1,253}}$){LABEL}(\.{LABEL})*")
GPU_UUID: Final = re.compile(r"GPU-[0-9A-Za-z-]{1,60}")
HOST_KEY: Final = re.compile(r"(ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(256|384|521)) [A-Za-z0-9+/]{40,2000}={0,3}")
_logged: set[str] = set()


OPTIONAL: Final[dict[str, Any]] = {"required": False, "default": "", "allow_null": True, "allow_blank": True}


class Text(serializers.CharField):
    """A string; numbers and booleans are not turned into one. ``null`` and missing mean empty unless it is required."""

    def __init__(
        self, most: int, *, form: re.Pattern[str] | None = None, like: str = "", required: bool = False
    ) -> None:
        optional: dict[str, Any] = {} if required else OPTIONAL
        super().__init__(max_length=most, **optional)
        self.form, self.like = form, like

    def to_internal_value(self, data: object) -> str:
        """Refuse what is not a string, then what has not the wanted form."""
        if not isinstance(data, str):
            self.fail("invalid")
        text: str = super().to_internal_value(data)
        if text and self.form and not self.form.fullmatch(text):
            raise serializers.ValidationError(f"must look like {self.like}")
        return text

    def validate_empty_values(self, data: object) -> tuple[bool, Any]:
        """``null`` is the empty string for an optional text."""
        if data is None and self.allow_null:
            return True, ""
        return super().validate_empty_values(data)


class Prose(Text):
    """An explanation for people. A longer one is cut: a long error of an engine must not cost the whole message."""

    def to_internal_value(self, data: object) -> str:
        """The beginning of the text, without the NUL characters that a log may hold and no database takes."""
        text = super().to_internal_value(data.replace("\0", "") if isinstance(data, str) else data)
        return text[: self.max_length]


class Whole(serializers.IntegerField):
    """A JSON integer; ``"5"``, ``5.0`` and ``true`` are not."""

    def to_internal_value(self, data: object) -> int:
        """Refuse anything but an integer."""
        if not isinstance(data, int) or isinstance(data, bool):
            self.fail("invalid")
        number: int = super().to_internal_value(data)
        return number


class Truth(serializers.BooleanField):
    """``true`` or ``false``, nothing that looks like it."""

    def to_internal_value(self, data: object) -> bool:
        """Refuse anything but a boolean."""
        if not isinstance(data, bool):
            self.fail("invalid", input=data)
        return bool(data)


class Payload(serializers.Serializer[Any]):
    """Base of what an agent sends; ``known`` names fields that another reader of the same message takes."""

    known: tuple[str, ...] = ()

    def to_internal_value(self, data: object) -> dict[str, Any]:
        """Note unknown fields, then check the rest."""
        if isinstance(data, dict):
            for name in set(data) - set(self.fields) - set(self.known):
                _log_once(f"{type(self).__name__}.{str(name)[:64]}")
        checked: dict[str, Any] = super().to_internal_value(data)
        return checked


class Port(Whole):
    """A TCP port; ``null`` and missing mean: not said."""

    def __init__(self) -> None:
        super().__init__(min_value=1, max_value=65_535, required=False, allow_null=True, default=None)


class Address(Text):
    """A host name or an IP address, as renters will type it; empty means: not said."""

    def __init__(self) -> None:
        super().__init__(253)

    def to_internal_value(self, data: object) -> str:
        """Refuse what is neither."""
        text = super().to_internal_value(data)
        if text and not is_address(text):
            raise serializers.ValidationError("must be a host name or an IP address")
        return text


class Size(Whole):
    """Bytes."""

    def __init__(self, *, least: int = 0, required: bool = True) -> None:
        optional: dict[str, Any] = {} if required else {"required": False, "default": 0}
        super().__init__(min_value=least, max_value=MAX_BYTES, **optional)


class EnrolIn(Payload):
    """Body of ``POST enrol``."""

    enrolment_token = Text(200, required=True)
    agent_version = Text(32)
    hostname = Text(253)
    machine_id = Text(64)
    boot_id = Text(64)
    ssh_host = Address()
    ssh_port = Port()
    ssh_host_key = Text(2100, form=HOST_KEY, like="ssh-ed25519 AAAA…, without comment")


class GpuIn(Payload):
    """One GPU of an inventory."""

    uuid = Text(64, required=True, form=GPU_UUID, like="GPU-8f3a…, as NVML gives it")
    name = Text(96, required=True)
    memory_bytes = Size(least=1)
    index = Whole(min_value=0, max_value=1023)
    pci_bus_id = Text(32)
    serial = Text(64)
    compute_capability = Text(8)
    mig_mode = Truth()
    healthy = Truth()
    fault = Prose(500)


class MachineIn(Payload):
    """The machine of an inventory."""

    hostname = Text(253)
    os = Text(128)
    kernel = Text(128)
    arch = Text(32)
    cpu_model = Text(128)
    cpu_cores = Whole(min_value=1, max_value=65_535)
    memory_bytes = Size()
    disk_bytes = Size()
    disk_free_bytes = Size(required=False)
    docker_version = Text(64)
    storage_driver = Text(64)
    cgroup_version = Whole(min_value=1, max_value=2, required=False, allow_null=True, default=None)


class CapabilitiesIn(Payload):
    """What the node's engine and kernel can do."""

    gpu_request = serializers.ChoiceField(choices=["cdi", "device_request", "simulated"])
    runtimes = serializers.ListField(child=Text(64, required=True), max_length=32, required=False, default=list)
    workspace_quota = Truth(required=False, default=False)


class InventoryIn(Payload):
    """Body of ``POST inventory``."""

    boot_id = Text(64)
    agent_version = Text(32)
    simulated = Truth()
    driver_version = Text(32)
    cuda_version = Text(16)
    ssh_host = Address()
    ssh_port = Port()
    ssh_host_key = Text(2100, form=HOST_KEY, like="ssh-ed25519 AAAA…, without comment")
    gpus: serializers.ListSerializer[Any] = serializers.ListSerializer(child=GpuIn(), max_length=MAX_GPUS)
    machine = MachineIn()
    capabilities = CapabilitiesIn()

    def validate_gpus(self, gpus: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A UUID names one card."""
        uuids = [gpu["uuid"] for gpu in gpus]
        if len(set(uuids)) != len(uuids):
            raise serializers.ValidationError("each uuid once")
        return gpus

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Real GPUs are always asked of the engine; simulated ones never."""
        if (attrs["capabilities"]["gpu_request"] == "simulated") != attrs["simulated"]:
            raise serializers.ValidationError({"simulated": ["must agree with capabilities.gpu_request"]})
        return attrs


class CheckIn(Payload):
    """One check of a preflight."""

    name = Text(64, required=True)
    ok = Truth()
    detail = Prose(1000)


class PreflightIn(Payload):
    """Body of ``POST preflight``."""

    ok = Truth()
    checks: serializers.ListSerializer[Any] = serializers.ListSerializer(child=CheckIn(), max_length=MAX_CHECKS)


class GpuHealthIn(Payload):
    """One GPU of a heartbeat."""

    uuid = Text(64, required=True, form=GPU_UUID, like="GPU-8f3a…, as NVML gives it")
    healthy = Truth()
    fault = Prose(500)


class HeartbeatIn(Payload):
    """Body of ``POST heartbeat``, without the leases, which are rental's to read."""

    known = ("leases",)
    boot_id = Text(64)
    agent_run = Text(64)
    clock = Text(64)
    gpus: serializers.ListSerializer[Any] = serializers.ListSerializer(
        child=GpuHealthIn(), max_length=MAX_GPUS, required=False, default=list
    )


def read(kind: type[Payload], data: object) -> dict[str, Any]:
    """The checked content of ``data``. Raises InvalidInput naming each wrong field as ``gpus.0.uuid``."""
    reader = kind(data=data)
    if not reader.is_valid():
        errors = problems.flat(reader.errors)
        sentence = "; ".join(f"{name}: {sentences[0]}" for name, sentences in errors.items())
        raise InvalidInput(sentence[:500], errors=errors)
    return dict(reader.validated_data)


def is_address(text: str) -> bool:
    """Whether ``text`` is a host name or an IP address."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return HOST_NAME.fullmatch(text) is not None
    return "%" not in text  # a scope id names an interface of one machine


def _log_once(name: str) -> None:
    if name not in _logged and len(_logged) < 1000:  # noqa: PLR2004  # a node cannot fill our memory with made-up names
        _logged.add(name)
        logger.warning("node API: ignoring the unknown field %s", name)
