"""Numbers as other countries write them are refused with an example, never read as something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.urls import reverse

from billing.services import account_for
from rental.models import Lease
from tests import make
from tests.rental.factories import running

if TYPE_CHECKING:
    from django.test import Client

    from nodes.models import Node
    from portal.models import Tenant, User
    from tests.clients import ApiClient

pytestmark = [pytest.mark.django_db, pytest.mark.one_database]
MISREAD = ["1,5", "1.500,00", "9.999,99", "1 000", "1\u00a0000", "9.999", "1,000", "٣", "1e1", "-5"]
LANGUAGES = pytest.mark.parametrize("language", ["de", "fr", "ru", "zh-hans"])
RENT = {"gpu_model": make.H100, "gpu_count": "1", "plan": "on_demand", "image": "", "idle_timeout": "1800"}


@LANGUAGES
@pytest.mark.parametrize(("field", "example"), [("max_hours", "1.5"), ("spend_cap", "20.00")])
def test_hours_and_caps_that_could_be_misread_make_no_price(
    page: Client, renter: User, node: Node, language: str, field: str, example: str
) -> None:  # case B05
    keys = [key.pk for key in renter.ssh_keys.all()]
    for text in MISREAD:
        typed = RENT | {"ssh_keys": keys, "max_hours": "24", "spend_cap": "", field: text}
        answer = page.post(reverse("quote-panel"), typed, headers={"Accept-Language": language})
        shown = answer.content.decode()
        assert example in shown, text
        assert 'name="quote"' not in shown, text


@LANGUAGES
def test_a_running_lease_keeps_its_limits_when_new_ones_could_be_misread(
    page: Client, renter: User, tenant: Tenant, node: Node, language: str
) -> None:  # case B05
    lease = running(renter, tenant, max_duration_s=7200)
    for text in MISREAD:
        for field in ("max_hours", "spend_cap"):
            typed = {"max_hours": "2", "spend_cap": "", field: text}
            page.post(reverse("lease-extend", args=[lease.pk]), typed, headers={"Accept-Language": language})
    lease.refresh_from_db()
    assert (lease.max_duration_s, lease.spend_cap_micros) == (7200, None)


@LANGUAGES
def test_a_months_cap_that_could_be_misread_is_not_set(
    page: Client, renter: User, tenant: Tenant, language: str
) -> None:  # case B05
    for text in MISREAD:
        answer = page.post(reverse("month-cap"), {"cap": text}, headers={"Accept-Language": language})
        assert "1500.50" in answer.content.decode() or answer.context["form"].errors, text
    assert account_for(tenant).month_cap_micros is None


@pytest.mark.parametrize("value", ["1,5", "1.500,00", "1 000", 1.5, "1000", True, -1, 10**30])
@pytest.mark.parametrize("field", ["max_duration_s", "spend_cap_micros", "gpu_count", "max_price_micros_per_hour"])
def test_the_api_takes_whole_numbers_only(
    api: ApiClient, renter: User, node: Node, field: str, value: Any
) -> None:  # case B05
    answer = api.post("quotes", {"gpu_model": make.H100, field: value})
    assert answer.status_code == 400
    assert list(answer.json()["errors"]) == [field]
    assert not Lease.objects.exists()
