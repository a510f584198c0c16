"""What a renter may ask for: ``LeaseRequest``, and the one parser that turns foreign data into it.

Everything is checked here, before a price is made: a wrong or unknown key is refused by name, so nothing privileged can
be slipped in (case H07) and a misspelt limit is never silently dropped (case D06).
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings

from billing.models import Plan
from portal.errors import InvalidInput
from rental import images

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_GPUS: Final = 16
LEAST_DURATION_S: Final = 60
DEFAULT_INACTIVE_TIMEOUT_S: Final = 1800
MAX_MICROS: Final = 2_000_000_000 * 1_000_000  # billing's own bound: two thousand million of any currency
PRIORITY: Final = {Plan.ON_DEMAND: (50, 50), Plan.SPOT: (10, 10)}  # default, ceiling
NOT_OFFERED: Final = {
    "starts_at": "reservations are not offered yet; leave it out to rent now.",
    "nvlink": "choosing by NVLink is not offered yet.",
    "mig_profile": "MIG slices are not offered yet; whole GPUs are.",
    "milli": "shares of a GPU are not offered yet; whole GPUs are.",
    "template": "templates are not offered yet; name an image.",
    "env": "environment variables are not offered yet; set them in the lease over SSH.",
    "secrets": "secrets are not offered yet.",
    "volume": "volumes are not offered yet; /workspace ends with the lease.",
}


@dataclass(frozen=True)
class LeaseRequest:
    """An order that is valid in itself; whether it can be served is for the catalog and the services to say.

    Durations are seconds, amounts whole µ of the tenant's currency, ``inactive_timeout_s`` None means never released
    for being idle, ``ssh_key_ids`` None means all keys of the tenant's members, ``gpu_memory_gb`` is the least memory
    per GPU, ``cuda_min`` the least CUDA version of the driver.
    """

    gpu_model: str
    image: str
    gpu_count: int = 1
    plan: str = Plan.ON_DEMAND.value
    priority: int = 50
    max_duration_s: int = 86_400
    inactive_timeout_s: int | None = DEFAULT_INACTIVE_TIMEOUT_S
    spend_cap_micros: int | None = None
    max_price_micros_per_hour: int | None = None
    name: str = ""
    ssh_key_ids: tuple[str, ...] | None = None
    gpu_memory_gb: int | None = None
    cuda_min: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data for a quote."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LeaseRequest:
        """The request out of our own signed quote."""
        known = {field.name for field in fields(cls)}
        values = {key: value for key, value in data.items() if key in known}
        if values.get("ssh_key_ids") is not None:
            values["ssh_key_ids"] = tuple(values["ssh_key_ids"])
        return cls(**values)


# What container engines and their front ends call the settings that a lease's container never takes from anybody.
CONTAINER_SETTINGS: Final = (
    "privileged", "capadd", "capdrop", "devices", "devicerequests", "devicecgrouprules", "gpus", "gpuuuids",
    "deviceids", "pid", "pidmode", "ipc", "ipcmode", "uts", "utsmode", "userns", "usernsmode", "cgroupns",
    "cgroupnsmode", "cgroupparent", "net", "network", "networkmode", "networks", "ports", "portbindings",
    "publishallports", "extrahosts", "links", "securityopt", "apparmor", "seccomp", "sysctls", "ulimits", "mounts",
    "volumes", "volumesfrom", "binds", "tmpfs", "storageopt", "runtime", "hostconfig", "containerconfig",
    "restartpolicy", "oomscoreadj", "groupadd", "user", "entrypoint", "hostname", "labels", "dockerhost",
)  # fmt: skip
FIELDS: Final = frozenset({*(field.name for field in fields(LeaseRequest)), "when"})


def container_settings(data: Mapping[str, Any]) -> list[str]:
    """The names in ``data`` that would have set up the container itself, in any spelling. All of them are refused."""
    named = (str(name)[:64] for name in data)
    return sorted(name for name in named if re.sub(r"[^a-z]", "", name.lower()) in CONTAINER_SETTINGS)


def parse(data: Mapping[str, Any]) -> LeaseRequest:
    """Check foreign data. Raises InvalidInput with every wrong field named at once."""
    reader = _Reader(data)
    reader.refuse_unknown()
    reader.check_when()
    plan = reader.plan()
    request = LeaseRequest(
        gpu_model=reader.text("gpu_model", most=96, needed=True),
        image=reader.image(),
        gpu_count=reader.number("gpu_count", default=1, least=1, most=MAX_GPUS),
        plan=plan,
        priority=reader.priority(plan),
        max_duration_s=reader.number(
            "max_duration_s", default=settings.MAX_DURATION_S, least=LEAST_DURATION_S, most=settings.MAX_DURATION_S
        ),
        inactive_timeout_s=reader.inactive_timeout(),
        spend_cap_micros=reader.optional_number("spend_cap_micros", least=1, most=MAX_MICROS),
        max_price_micros_per_hour=reader.optional_number("max_price_micros_per_hour", least=1, most=MAX_MICROS),
        name=reader.text("name", most=80),
        ssh_key_ids=reader.ssh_key_ids(),
        gpu_memory_gb=reader.optional_number("gpu_memory_gb", least=1, most=10_000),
        cuda_min=reader.cuda_min(),
    )
    if reader.errors:
        name, sentences = next(iter(reader.errors.items()))
        raise InvalidInput(f"{name}: {sentences[0]}", errors=reader.errors)
    return request


class _Reader:
    """Reads one field at a time and collects what is wrong instead of stopping at the first fault."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.errors: dict[str, list[str]] = {}

    def wrong(self, name: str, sentence: str) -> None:
        self.errors.setdefault(name, []).append(sentence)

    def refuse_unknown(self) -> None:
        for name in self.data:
            if name in NOT_OFFERED and self.data[name] is not None:
                self.wrong(name, NOT_OFFERED[name])
            elif name not in FIELDS and name not in NOT_OFFERED:
                self.wrong(str(name)[:64], f"unknown field; known are {', '.join(sorted(FIELDS))}.")

    def check_when(self) -> None:
        when = self.data.get("when")
        if when == "queue":
            self.wrong("when", 'queueing is not offered yet; "now" is accepted.')
        elif when is not None and when != "now":
            self.wrong("when", '"now" is accepted.')

    def plan(self) -> str:
        plan = self.data.get("plan")
        if plan is None:
            return Plan.ON_DEMAND.value
        if plan == Plan.RESERVED:
            self.wrong("plan", "reservations are not offered yet; on_demand and spot are.")
        elif plan not in (Plan.ON_DEMAND.value, Plan.SPOT.value):
            self.wrong("plan", "on_demand or spot is accepted.")
        else:
            return str(plan)
        return Plan.ON_DEMAND.value

    def priority(self, plan: str) -> int:
        default, most = PRIORITY[Plan(plan)]
        return self.number("priority", default=default, least=0, most=most)

    def number(self, name: str, *, default: int, least: int, most: int) -> int:
        """A whole number; missing and null give ``default``."""
        value = self.optional_number(name, least=least, most=most)
        return default if value is None else value

    def optional_number(self, name: str, *, least: int, most: int) -> int | None:
        """A whole number or None. Text, fractions and true are refused, never guessed at."""
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong(name, f"a whole number from {least} to {most} is accepted.")
        elif not least <= value <= most:
            self.wrong(name, f"{value} is out of range; {least} to {most} is accepted.")
        else:
            return value
        return None

    def inactive_timeout(self) -> int | None:
        """Seconds, None for "off"; null is the default. What was asked, or the portal's limit if that is less."""
        value = self.data.get("inactive_timeout_s")
        asked: int | None = DEFAULT_INACTIVE_TIMEOUT_S
        if value == "off" and settings.IDLE_OFF_ALLOWED:
            return None
        if value == "off":
            self.wrong("inactive_timeout_s", "this offer does not allow leases without an idle limit.")
        elif value == 0 and not isinstance(value, bool):
            self.wrong("inactive_timeout_s", "0 is not accepted; leave it out for 30 minutes.")
        else:
            least, most = settings.IDLE_TIMEOUT_MIN_S, settings.MAX_DURATION_S
            asked = self.optional_number("inactive_timeout_s", least=least, most=most)
        return min(asked or DEFAULT_INACTIVE_TIMEOUT_S, settings.IDLE_TIMEOUT_MAX_S)

    def text(self, name: str, *, most: int, needed: bool = False) -> str:
        value = self.data.get(name)
        if value is None or value == "":
            if needed:
                self.wrong(name, "this field is needed.")
            return ""
        if not isinstance(value, str):
            self.wrong(name, "text is accepted.")
        elif len(value) > most:
            self.wrong(name, f"{len(value)} characters; at most {most} are accepted.")
        elif not value.isprintable():
            self.wrong(name, "control characters are not accepted.")
        else:
            return value.strip()
        return ""

    def image(self) -> str:
        value = self.data.get("image")
        if value is None or value == "":
            return str(settings.DEFAULT_IMAGE)
        if not isinstance(value, str):
            self.wrong("image", "text is accepted, for example debian:12.")
            return ""
        try:
            return images.parse(value).text
        except images.BadReferenceError as error:
            self.wrong("image", f"{error}.")
            return ""

    def ssh_key_ids(self) -> tuple[str, ...] | None:
        value = self.data.get("ssh_key_ids")
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(key, str) for key in value):
            self.wrong("ssh_key_ids", "a list of key ids is accepted; leave it out for all keys.")
            return None
        if not value:
            self.wrong("ssh_key_ids", "name at least one key, or leave it out for all keys; nobody could log in.")
            return None
        if len(value) > 100:  # noqa: PLR2004  # more than any tenant's working set; bounds the quote
            self.wrong("ssh_key_ids", "at most 100 keys are accepted.")
            return None
        return tuple(dict.fromkeys(value))

    def cuda_min(self) -> str | None:
        value = self.data.get("cuda_min")
        if value is None:
            return None
        if not isinstance(value, str) or not re.fullmatch(r"[0-9]{1,2}\.[0-9]{1,2}", value):
            self.wrong("cuda_min", "a version such as 12.4, in quotes, is accepted.")
            return None
        return value
