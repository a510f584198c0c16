"""What a renter may ask for, field by field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from portal.errors import InvalidInput
from portal.models import AuditEvent
from rental.requests import LeaseRequest, parse

if TYPE_CHECKING:
    from portal.models import User
    from tests.clients import ApiClient


def refused(field: str, value: Any) -> str:
    with pytest.raises(InvalidInput) as error:
        parse({"gpu_model": "X", field: value})
    assert list(error.value.errors) == [field]
    return error.value.errors[field][0]


def test_defaults_are_those_of_the_documentation(settings: Any) -> None:
    assert parse({"gpu_model": "X"}) == LeaseRequest(
        gpu_model="X",
        image=settings.DEFAULT_IMAGE,
        gpu_count=1,
        plan="on_demand",
        priority=50,
        max_duration_s=settings.MAX_DURATION_S,
        inactive_timeout_s=1800,
    )
    assert parse({"gpu_model": "X", "plan": "spot"}).priority == 10


def test_null_is_the_same_as_missing() -> None:
    names = set(LeaseRequest.__dataclass_fields__) - {"gpu_model"} | {"when", "env", "volume", "nvlink"}
    assert parse({"gpu_model": "X", **dict.fromkeys(names)}) == parse({"gpu_model": "X"})


@pytest.mark.parametrize("value", [0, -1, 59, 86_401, "5m", "1d", "off", "3600", 3600.0, True, [], {}])
def test_a_duration_that_means_nothing_is_never_guessed_at(value: Any) -> None:  # case D06
    assert "60" in refused("max_duration_s", value)


@pytest.mark.parametrize("value", [-1, 59, "30m", "", True, 1.5])
def test_an_idle_limit_that_means_nothing_is_refused(value: Any) -> None:  # case D06
    refused("inactive_timeout_s", value)


def test_off_zero_and_missing_are_three_things() -> None:  # case D06
    assert refused("inactive_timeout_s", "off") == "this offer does not allow leases without an idle limit."
    assert refused("inactive_timeout_s", 0) == "0 is not accepted; leave it out for 30 minutes."
    assert parse({"gpu_model": "X", "inactive_timeout_s": None}).inactive_timeout_s == 1800


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("plan", "reserved", "reservations are not offered yet"),
        ("when", "queue", "queueing is not offered yet"),
        ("starts_at", "2027-01-01T00:00:00Z", "not offered yet"),
        ("nvlink", True, "not offered yet"),
        ("mig_profile", "1g.10gb", "not offered yet"),
        ("milli", 500, "not offered yet"),
        ("template", "tp-1", "not offered yet"),
        ("env", {"A": "b"}, "not offered yet"),
        ("secrets", {"A": "b"}, "not offered yet"),
        ("volume", "vl-1", "not offered yet"),
    ],
)
def test_what_is_not_offered_yet_says_so(field: str, value: Any, words: str) -> None:
    assert words in refused(field, value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gpu_count", 0), ("gpu_count", 17), ("gpu_count", "2"), ("gpu_count", 1.0), ("gpu_count", True),
        ("plan", "cheap"), ("plan", 1), ("plan", ["spot"]), ("when", "later"), ("when", {}),
        ("priority", 51), ("priority", -1), ("priority", "high"),
        ("spend_cap_micros", 0), ("spend_cap_micros", "1,5"), ("spend_cap_micros", 1.5), ("spend_cap_micros", 10**16),
        ("max_price_micros_per_hour", -1), ("image", "Team/Img"), ("image", 7), ("name", "x" * 81), ("name", "a\x00b"),
        ("ssh_key_ids", []), ("ssh_key_ids", "sk-1"), ("ssh_key_ids", [1]), ("ssh_key_ids", ["x"] * 101),
        ("gpu_memory_gb", "80"), ("cuda_min", 12.4), ("cuda_min", "12"), ("cuda_min", "twelve"),
    ],
)  # fmt: skip
def test_a_wrong_value_names_its_field(field: str, value: Any) -> None:
    refused(field, value)


def test_a_spot_lease_cannot_outrank(settings: Any) -> None:
    with pytest.raises(InvalidInput) as error:
        parse({"gpu_model": "X", "plan": "spot", "priority": 11})
    assert list(error.value.errors) == ["priority"]


@pytest.mark.parametrize(
    "field",
    [
        "privileged", "cap_add", "devices", "pid_mode", "ipc_mode", "network_mode", "security_opt", "sysctls", "mounts",
        "volumes", "runtime", "gpus", "host_config", "HostConfig", "user", "entrypoint", "binds", "tenant", "state",
        "price_micros_per_hour", "node", "id", "deadline_at", "generation", "units",
    ],
)  # fmt: skip
def test_nothing_privileged_can_even_be_said(field: str) -> None:  # case H07, case H06
    assert "unknown field" in refused(field, "host")


@pytest.mark.parametrize("path", ["quotes", "leases"])
def test_a_try_to_set_up_the_container_is_written_down(api: ApiClient, user: User, path: str) -> None:  # case H07
    answer = api.post(f"/api/v1/{path}", {"gpu_model": "X", "HostConfig": {}, "cap-add": ["ALL"], "misspelt": 1})

    assert answer.status_code == 400
    event = AuditEvent.objects.get(action="lease.setting_refused")
    assert (event.actor, event.data) == (user, {"fields": ["HostConfig", "cap-add"]})


def test_a_field_that_is_only_misspelt_is_not_written_down(api: ApiClient) -> None:
    assert api.post("/api/v1/quotes", {"gpu_modell": "X"}).status_code == 400
    assert not AuditEvent.objects.filter(action="lease.setting_refused").exists()


def test_all_wrong_fields_are_named_at_once() -> None:
    with pytest.raises(InvalidInput) as error:
        parse({"gpu_count": 0, "privileged": True, "max_duration_s": "5m"})
    assert set(error.value.errors) == {"gpu_model", "gpu_count", "privileged", "max_duration_s"}


def test_a_request_survives_its_way_through_a_quote() -> None:
    request = parse({"gpu_model": "X", "ssh_key_ids": ["a", "b", "a"], "cuda_min": "12.4", "name": " run 1 "})
    assert request.ssh_key_ids == ("a", "b")
    assert request.name == "run 1"
    assert LeaseRequest.from_dict(request.as_dict()) == request
