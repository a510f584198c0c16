"""API v1 of rentals over HTTP: what programs send, what they get, what they are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.utils import timezone

from billing.models import Hold
from rental.models import Lease
from rental.states import EndReason, State
from tests import make
from tests.clients import ApiClient
from tests.rental.factories import order, report, running

if TYPE_CHECKING:
    from django.test.client import _MonkeyPatchedWSGIResponse as Answer
    from pytest_django import DjangoAssertNumQueries

    from nodes.models import Node
    from portal.models import Tenant, User

pytestmark = pytest.mark.django_db

ASK = {"gpu_model": make.H100, "gpu_count": 2}


@pytest.fixture
def program(renter: User, node: Node) -> ApiClient:
    """A program of a renter who can order."""
    return ApiClient(make.make_token(renter)[1])


def ordered(program: ApiClient, **values: Any) -> Answer:
    """The answer to an order of a fresh quote."""
    quoted = program.post("quotes", {**ASK, **values}).json()
    return program.post("leases", {"quote": quoted["quote"]})


# --- offers -----------------------------------------------------------------------------------------------------------


def test_offers_are_public_and_name_price_and_free_gpus(node: Node) -> None:
    (offer,) = ApiClient(None).get("offers").json()["results"]
    assert offer == {
        "id": "nvidia-h100-80gb-hbm3",
        "gpu_model": make.H100,
        "short_name": "H100 SXM",
        "gpu_memory_gb": 80,
        "free_count": 8,
        "total_count": 8,
        "max_gpu_count": 8,
        "max_free_count": 8,
        "simulated": False,
        "currency": "USD",
        "prices": {"on_demand": 2_490_000, "spot": 498_000},
        "reasons": [],
    }


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("gpu_count=8", 1),
        ("gpu_count=9", 0),
        ("gpu_memory_gb=80", 1),
        ("gpu_memory_gb=81", 0),
        ("plan=spot", 1),
        ("gpu_model=NVIDIA+L4", 0),
        ("max_price_micros_per_hour=2489999", 0),
        ("cuda_min=12.8", 1),
        ("cuda_min=13.0", 0),
        ("only_free=true", 1),
    ],
)
def test_offers_can_be_filtered(node: Node, query: str, found: int) -> None:
    assert len(ApiClient(None).get(f"offers?{query}").json()["results"]) == found


@pytest.mark.parametrize("query", ["gpu_count=0", "gpu_count=two", "plan=reserved", "cuda_min=new", "nvlink=1"])
def test_a_filter_that_is_wrong_or_unknown_is_refused_by_name(node: Node, query: str) -> None:
    answer = ApiClient(None).get(f"offers?{query}")
    assert answer.status_code == 400
    assert query.split("=", maxsplit=1)[0] in answer.json()["errors"]


def test_an_offer_with_nothing_free_says_why(renter: User, tenant: Tenant, node: Node) -> None:
    order(renter, tenant, gpu_count=8)
    (offer,) = ApiClient(None).get("offers").json()["results"]
    assert offer["free_count"] == 0
    assert offer["reasons"] == [{"code": "leased", "count": 8, "text": "8 are leased"}]


def test_offers_cost_the_same_queries_for_any_fleet(
    node: Node, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for _number in range(3):
        make.make_node(gpus=4)
    with django_assert_num_queries(2):
        ApiClient(None).get("offers")


# --- quotes -----------------------------------------------------------------------------------------------------------


def test_a_quote_promises_a_price_and_writes_nothing(program: ApiClient) -> None:
    answer = program.post("quotes", {**ASK, "max_duration_s": 7200})
    assert answer.status_code == 200
    quote = answer.json()
    assert quote["price_micros_per_hour"] == 2_490_000
    assert (quote["units"], quote["total_micros_per_hour"], quote["currency"]) == (2, 4_980_000, "USD")
    assert (quote["hold_micros"], quote["most_micros"], quote["max_duration_s"]) == (4_980_000, 9_960_000, 7200)
    assert (quote["available"], quote["reasons"], quote["simulated"]) == (True, [], False)
    assert quote["expires_at"].endswith("Z")
    assert not Lease.objects.exists()
    assert not Hold.objects.exists()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gpu_model", "NVIDIA L4"),
        ("gpu_count", 9),
        ("gpu_count", True),
        ("gpu_count", "2"),
        ("plan", "reserved"),
        ("when", "queue"),
        ("max_duration_s", 59),
        ("inactive_timeout_s", 0),
        ("spend_cap_micros", 1),
        ("image", "Debian"),
        ("ssh_key_ids", []),
        ("ssh_key_ids", ["sk-not-mine"]),
        ("env", {"A": "1"}),
        ("privileged", True),
    ],
)
def test_a_wrong_field_of_an_order_is_refused_by_name(program: ApiClient, field: str, value: Any) -> None:
    answer = program.post("quotes", {**ASK, field: value})
    assert answer.status_code == 400, answer.json()
    assert field in answer.json()["errors"]


@pytest.mark.parametrize("body", [[], "text", 7, None])
def test_a_quote_wants_a_json_object(program: ApiClient, body: Any) -> None:
    answer = program.send("POST", "quotes", body if body is not None else "null")
    assert answer.status_code == 400


def test_a_price_above_the_limit_is_refused_with_both_numbers(program: ApiClient) -> None:
    answer = program.post("quotes", {**ASK, "max_price_micros_per_hour": 2_000_000})
    assert answer.status_code == 409
    assert answer.json()["code"] == "price_above_limit"
    assert answer.json()["price_micros_per_hour"] == 2_490_000


def test_without_an_ssh_key_nothing_is_quoted(user: User, node: Node) -> None:
    answer = ApiClient(make.make_token(user)[1]).post("quotes", ASK)
    assert (answer.status_code, answer.json()["code"]) == (400, "no_ssh_key")


# --- orders -----------------------------------------------------------------------------------------------------------


def test_an_order_answers_201_and_the_same_quote_again_200_with_its_lease(program: ApiClient) -> None:
    token = program.post("quotes", ASK).json()["quote"]
    first = program.post("leases", {"quote": token, "name": "finetune"})
    again = program.post("leases", {"quote": token}, **{"Idempotency-Key": "any"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert first["Location"] == f"/api/v1/leases/{first.json()['id']}"
    assert Lease.objects.count() == 1


def test_a_new_lease_says_what_was_ordered_and_how_to_get_in(program: ApiClient, node: Node) -> None:
    lease = ordered(program).json()
    assert (lease["state"], lease["gpu_count"], lease["units"]) == ("assigned", 2, 2)
    assert lease["node"] == {"id": node.pk, "name": node.name, "simulated": False}
    assert len(lease["devices"]) == 2
    assert lease["ssh"]["command"] == f"ssh -p 2222 {lease['id']}@127.0.0.1"
    assert lease["ssh"]["known_hosts"].startswith("[127.0.0.1]:2222 ssh-ed25519 ")
    assert (lease["ticks"], lease["cost_micros"], lease["seconds_charged"]) == (0, 0, 0)


def test_too_little_money_is_402_with_the_numbers_and_leaves_nothing(user: User, node: Node) -> None:
    make.make_key(user)
    answer = ordered(ApiClient(make.make_token(user)[1]))
    assert answer.status_code == 402
    assert answer.json()["code"] == "insufficient_funds"
    assert answer.json()["needed_micros"] == 4_980_000
    assert not Lease.objects.exists()


def test_no_capacity_is_409_with_the_reasons_in_the_words_of_offers(program: ApiClient) -> None:
    token = program.post("quotes", {**ASK, "gpu_count": 8}).json()["quote"]
    assert ordered(program, gpu_count=1).status_code == 201
    answer = program.post("leases", {"quote": token})
    assert (answer.status_code, answer.json()["code"]) == (409, "no_capacity")
    offer = program.get("offers?gpu_count=8").json()["results"][0]
    assert answer.json()["reasons"] == offer["reasons"]


@pytest.mark.parametrize("token", ["", "made-up", "a" * 9000, 7, None, ["x"]])
def test_a_quote_that_is_not_ours_is_refused(program: ApiClient, token: Any) -> None:
    answer = program.post("leases", {"quote": token})
    assert answer.status_code == 400
    assert "quote" in answer.json()["errors"]


def test_a_quote_is_worth_nothing_to_another_tenant(program: ApiClient, stranger: User) -> None:
    make.make_key(stranger)
    make.make_balance(make.tenant_of(stranger))
    token = program.post("quotes", ASK).json()["quote"]
    answer = ApiClient(make.make_token(stranger)[1]).post("leases", {"quote": token})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_quote")


def test_an_order_takes_no_field_beside_quote_and_name(program: ApiClient) -> None:
    token = program.post("quotes", ASK).json()["quote"]
    answer = program.post("leases", {"quote": token, "gpu_count": 8})
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["gpu_count"])
    assert not Lease.objects.exists()


# --- leases -----------------------------------------------------------------------------------------------------------


def test_the_list_is_of_this_tenant_newest_first_and_can_be_narrowed(
    program: ApiClient, tenant: Tenant, stranger: User
) -> None:
    old = make.make_lease(tenant, state=State.ENDED, name="tokenizer")
    new = make.make_lease(tenant, name="finetune")
    make.make_lease(make.tenant_of(stranger))
    assert [row["id"] for row in program.get("leases").json()["results"]] == [new.pk, old.pk]
    assert [row["id"] for row in program.get("leases?state=ended").json()["results"]] == [old.pk]
    assert [row["id"] for row in program.get("leases?q=TUNE").json()["results"]] == [new.pk]
    assert [row["id"] for row in program.get(f"leases?q={old.pk}").json()["results"]] == [old.pk]
    assert program.get("leases?state=gone").status_code == 400
    assert program.get("leases?colour=red").status_code == 400


def test_the_list_is_read_page_by_page(program: ApiClient, tenant: Tenant) -> None:
    known = {make.make_lease(tenant, state=State.ENDED).pk for _ in range(5)}
    seen: list[str] = []
    cursor = ""
    while cursor is not None:
        page = program.get(f"leases?limit=2{cursor and f'&cursor={cursor}'}").json()
        seen += [row["id"] for row in page["results"]]
        cursor = page["next"]
    assert len(seen) == 5
    assert set(seen) == known


def test_a_list_costs_the_same_queries_for_any_number(
    program: ApiClient, tenant: Tenant, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    program.get("me")  # the first use of a token notes when
    for _number in range(4):
        make.make_lease(tenant)
    with django_assert_num_queries(4):
        program.get("leases")


def test_looking_at_a_lease_is_cheap_enough_to_poll(
    program: ApiClient, tenant: Tenant, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    lease = make.make_lease(tenant, gpu_count=2)
    program.get("me")  # the first use of a token notes when
    with django_assert_max_num_queries(4):
        assert program.get(f"leases/{lease.pk}").status_code == 200


def test_stopping_says_so_at_once_and_again_changes_nothing(program: ApiClient, renter: User, tenant: Tenant) -> None:
    lease = running(renter, tenant)
    first = program.post(f"leases/{lease.pk}/stop").json()
    again = program.post(f"leases/{lease.pk}/stop").json()
    assert (first["state"], first["end_reason"]) == ("stopping", EndReason.RELEASED)
    assert again["stop_requested_at"] == first["stop_requested_at"]


def test_stopping_takes_no_fields(program: ApiClient, tenant: Tenant) -> None:
    lease = make.make_lease(tenant)
    answer = program.post(f"leases/{lease.pk}/stop", {"force": True})
    assert (answer.status_code, list(answer.json()["errors"])) == (400, ["force"])
    assert Lease.objects.get().state == State.RUNNING


def test_only_a_running_lease_is_kept(program: ApiClient, tenant: Tenant) -> None:
    lease = make.make_lease(tenant)
    assert program.post(f"leases/{lease.pk}/keep").json()["kept_at"]
    over = make.make_lease(tenant, state=State.ENDED)
    answer = program.post(f"leases/{over.pk}/keep")
    assert (answer.status_code, answer.json()["code"]) == (409, "illegal_state")


def test_events_tell_the_steps_in_order(program: ApiClient, renter: User, tenant: Tenant) -> None:
    lease = running(renter, tenant)
    codes = [row["code"] for row in program.get(f"leases/{lease.pk}/events").json()["results"]]
    assert codes == ["requested", "assigned", "starting", "started", "ready"]


def test_the_receipt_adds_up_to_the_ledger(program: ApiClient, renter: User, tenant: Tenant) -> None:
    lease = running(renter, tenant)
    program.post(f"leases/{lease.pk}/stop")
    report(lease, "stopped")
    report(lease, "cleaned")
    receipt = program.get(f"leases/{lease.pk}/receipt").json()
    assert receipt["lease"] == lease.pk
    assert receipt["provisional"] is False
    assert receipt["total_ticks"] == sum(line["ticks"] for line in receipt["lines"]) == receipt["ledger_ticks"]
    assert all(
        line["ticks"] == line["seconds"] * line["units"] * line["price_micros_per_hour"] for line in receipt["lines"]
    )
    assert {gap["reason"] for gap in receipt["gaps"]} <= {"starting", "stopping"}


def test_an_ended_lease_says_why(program: ApiClient, tenant: Tenant) -> None:
    lease = make.make_lease(tenant, state=State.ENDED, end_reason=EndReason.FAILED_IMAGE, end_detail="no such image")
    said = program.get(f"leases/{lease.pk}").json()
    assert (said["end_reason"], said["end_detail"], said["devices"]) == ("failed_image", "no such image", [])
    assert said["ended_at"] <= timezone.now().isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize("lease_id", ["ls-nothere", "ls-", "%00", "x" * 200])
def test_a_lease_that_is_not_there_is_404(program: ApiClient, lease_id: str) -> None:
    for path in (f"leases/{lease_id}", f"leases/{lease_id}/events", f"leases/{lease_id}/receipt"):
        assert program.get(path).status_code == 404
