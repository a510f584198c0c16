"""Idleness in the portal: real heartbeats in simulated time, the sweep, warnings, keep, shadow, API and page."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
import time_machine
from django.test import Client, TestCase
from django.urls import reverse
from django.utils import timezone

from portal.actor import Actor
from portal.models import Membership
from rental import activity, desired, idle_services, notices, services, tasks
from rental.models import Lease, LeaseActivity, LeaseNotice
from rental.states import EndReason, State
from tests import make
from tests.rental.factories import a_quote, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import DjangoAssertNumQueries

    from nodes.models import Node
    from portal.models import Tenant, User
    from tests.clients import ApiClient

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
QUIET: dict[str, Any] = {
    "covers_s": 15.0, "gpu_percent": 0.0, "cpu_percent": 0.4, "network_bytes_per_s": 120, "ssh_input": False,
}  # fmt: skip


class World:
    """A node that tells what its leases do, and the sweep after each heartbeat, in simulated time."""

    def __init__(self, node: Node, moment: time_machine.Traveller) -> None:
        self.node, self.moment = node, moment
        self.http = Client(headers={"Authorization": f"Bearer {make.make_node_secret(node)}"})

    def beat(self, *leases: Lease, **values: Any) -> Any:
        """One heartbeat; each lease did nothing but ``values``."""
        said = [
            {
                "id": lease.pk,
                "generation": 1,
                "phase": "running",
                "container_id": lease.container_id,
                "activity": {**QUIET, **values},
            }
            for lease in leases
        ]
        return self.send(said)

    def send(self, leases: list[dict[str, Any]]) -> Any:
        body = {"boot_id": "b", "agent_run": "r", "clock": "", "leases": leases, "gpus": []}
        answer = self.http.post("/api/node/v1/heartbeat", json.dumps(body), content_type="application/json")
        assert answer.status_code == 200, answer.content
        return answer.json()

    def quiet(self, lease: Lease, minutes: float, **values: Any) -> None:
        """So long of nothing but ``values``, told in as few heartbeats as an agent that was cut off would."""
        left = int(minutes * 60)
        while left:
            seconds = next(step for step in (150, 60, 15) if step <= left)
            left -= seconds
            self.moment.shift(seconds)
            self.beat(lease, **{"covers_s": seconds, **values})
            tasks.sweep_idle()


@pytest.fixture
def world(node: Node) -> Iterator[World]:
    with time_machine.travel(NOON, tick=False) as moment:
        yield World(node, moment)


@pytest.fixture
def lease(world: World, renter: User, tenant: Tenant) -> Lease:
    """Ready at noon, with ten minutes of idle time: exempt until 12:10, warned at 12:15, released at 12:20."""
    return running(renter, tenant, inactive_timeout_s=600)


def state(lease: Lease) -> tuple[str, str]:
    lease.refresh_from_db()
    return lease.state, lease.end_reason


def codes(lease: Lease) -> list[str]:
    return [code for code in lease.events.values_list("code", flat=True) if code.startswith(("idle", "kept"))]


# --- what is released -------------------------------------------------------------------------------------------------


def test_a_lease_that_nothing_uses_is_warned_then_released_with_its_reasons(  # case D01
    world: World, lease: Lease, mailoutbox: list[Any]
) -> None:
    world.quiet(lease, 15)
    assert (state(lease), codes(lease)) == ((State.RUNNING, ""), ["idle_warning"])
    assert desired.desired_leases(world.node)[0]["notices"][0]["text"] == (
        "Idle for 5 min: this lease is released at 12:20 UTC unless it is used. Typing here counts."
    )
    world.quiet(lease, 5)
    assert state(lease) == (State.STOPPING, EndReason.IDLE)
    assert codes(lease) == ["idle_warning", "idle", "idle_released"]
    assert lease.end_detail == "Nothing used it for 10 min."
    data = lease.events.get(code="idle").data
    assert data["signals"][1] == {
        "name": "gpu", "value": 0.0, "limit": 5, "state": "idle", "last_active_at": None,
    }  # fmt: skip
    assert (data["window_s"], data["idle_s"], data["since"]) == (600, 600, "ready")
    for notice in LeaseNotice.objects.filter(void_at=None):
        notices.mail(notice_id=str(notice.pk))
    assert [mail.subject for mail in mailoutbox] == [
        f"{lease.pk} is idle and will be released at 12:20 UTC", f"{lease.pk} was released: it was idle",
    ]  # fmt: skip
    assert "GPU load: 0 % (counts: from 5 %)" in mailoutbox[1].body


@pytest.mark.parametrize(
    "use",
    [{"gpu_percent": 95}, {"cpu_percent": 40}, {"network_bytes_per_s": 90_000_000}, {"gpu_percent": None}],
    ids=["training", "preprocessing", "download", "unreadable"],
)
def test_a_lease_at_work_is_neither_warned_nor_released(  # case D01
    world: World, lease: Lease, use: dict[str, Any]
) -> None:
    world.quiet(lease, 25, **use)
    assert (state(lease), codes(lease)) == ((State.RUNNING, ""), [])


def test_a_burst_every_nine_minutes_keeps_it_and_takes_each_warning_back(world: World, lease: Lease) -> None:
    for _ in range(3):  # case D01
        world.quiet(lease, 8.75)
        world.quiet(lease, 0.25, gpu_percent=80)
    assert state(lease) == (State.RUNNING, "")
    world.quiet(lease, 1)
    assert notices.standing([lease]) == {}
    assert LeaseNotice.objects.filter(lease=lease).count() >= 2


def test_an_idle_slice_of_a_gpu_is_released_though_it_holds_memory(world: World, lease: Lease) -> None:  # case D02
    slice_says = {key: value for key, value in QUIET.items() if key != "gpu_percent"}
    for _ in range(9):
        world.moment.shift(150)
        said = {**slice_says, "covers_s": 150, "mig_processes": 1, "mig_memory_bytes": 70 << 30}
        world.send([{"id": lease.pk, "generation": 1, "phase": "running", "container_id": lease.container_id,
                     "activity": said}])  # fmt: skip
        tasks.sweep_idle()
    assert state(lease) == (State.STOPPING, EndReason.IDLE)


def test_looking_at_the_portal_all_the_time_is_no_use(  # case D02
    world: World, lease: Lease, page: Client, api: ApiClient
) -> None:
    for _ in range(8):
        world.quiet(lease, 2.5)
        if lease.state == State.RUNNING:
            assert page.get(reverse("lease", args=[lease.pk])).status_code == 200
            assert api.get(f"leases/{lease.pk}").status_code == 200
    assert state(lease) == (State.STOPPING, EndReason.IDLE)


def test_silence_is_nobodys_idleness(world: World, lease: Lease) -> None:
    world.quiet(lease, 19)
    world.moment.shift(600)
    tasks.sweep_idle()
    assert state(lease) == (State.RUNNING, "")
    world.beat(lease)  # a new agent, which knows only its own 15 s
    tasks.sweep_idle()
    world.quiet(lease, 9.5)
    assert state(lease) == (State.RUNNING, "")
    row = LeaseActivity.objects.get(lease=lease)
    assert (row.active_signal, row.active_at) == ("", NOON + timedelta(minutes=29) - timedelta(seconds=15))


def test_the_end_time_wins_over_a_lease_that_is_always_used(  # case D02
    world: World, renter: User, tenant: Tenant
) -> None:
    lease = running(renter, tenant, max_duration_s=900)
    world.quiet(lease, 16, gpu_percent=90)
    tasks.sweep_deadlines()
    assert state(lease) == (State.STOPPING, EndReason.MAX_DURATION)


def test_every_one_of_many_launches_keeps_its_limits_though_the_worker_dies(  # case D04
    world: World, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = make.make_node(gpus=30)
    leases = [make.make_lease(tenant, node=place, inactive_timeout_s=600, ready_at=NOON) for _ in range(30)]
    assert not Lease.objects.filter(deadline_at=None).exists()
    assert not Lease.objects.filter(inactive_timeout_s=None).exists()
    world.moment.shift(1200)
    warned = {"warned_for": NOON + timedelta(minutes=10), "warned_at": NOON + timedelta(minutes=15)}
    LeaseActivity.objects.bulk_create(
        LeaseActivity(lease=lease, sampled_at=timezone.now(), active_at=NOON, **warned) for lease in leases
    )
    settle, dies = idle_services.settle, iter([*[False] * 12, True])

    def dying(**values: Any) -> Any:
        if next(dies):
            raise SystemExit  # the worker, in the middle of a sweep
        return settle(**values)

    monkeypatch.setattr(idle_services, "settle", dying)
    with pytest.raises(SystemExit):
        tasks.sweep_idle()
    assert Lease.objects.filter(state=State.STOPPING).count() == 12
    monkeypatch.setattr(idle_services, "settle", settle)
    tasks.sweep_idle()
    assert Lease.objects.filter(state=State.STOPPING, end_reason=EndReason.IDLE).count() == 30


# --- keep -------------------------------------------------------------------------------------------------------------


def test_keeping_takes_the_warning_back_and_a_later_stretch_is_warned_of_again(
    world: World, lease: Lease, page: Client
) -> None:
    world.quiet(lease, 17)
    answer = page.post(reverse("lease-keep", args=[lease.pk]))
    assert answer["Location"] == reverse("lease", args=[lease.pk])
    assert notices.standing([lease]) == {}
    world.quiet(lease, 9.75)
    assert (state(lease), codes(lease)) == ((State.RUNNING, ""), ["idle_warning", "kept", "idle_warning"])
    world.quiet(lease, 0.25)
    assert state(lease) == (State.STOPPING, EndReason.IDLE)


def link_in(mail: Any) -> str:
    found = re.search(r"http://localhost:8000(/keep/\S+)", mail.body)
    assert found
    return found[1]


@pytest.fixture
def link(world: World, lease: Lease, mailoutbox: list[Any]) -> str:
    """The path behind the button of the warning's mail."""
    world.quiet(lease, 15)
    notices.mail(notice_id=str(LeaseNotice.objects.get(kind="idle_warning").pk))
    return link_in(mailoutbox[0])


def test_the_mails_link_keeps_the_lease_by_a_button_once_and_without_signing_in(lease: Lease, link: str) -> None:
    nobody = Client(enforce_csrf_checks=True)
    shown = nobody.get(link)
    lease.refresh_from_db()
    assert (shown.status_code, lease.kept_at) == (200, None)  # opening it changes nothing
    assert (shown["Cache-Control"], shown["Referrer-Policy"]) == ("no-store", "no-referrer")
    assert nobody.post(link).status_code == 403  # not from another site
    token = nobody.cookies["csrftoken"].value
    assert nobody.post(link, {"csrfmiddlewaretoken": token}).status_code == 200
    lease.refresh_from_db()
    assert lease.kept_at == timezone.now()
    assert lease.events.get(code="kept").actor_label == "link in a mail"
    assert nobody.get(link).status_code == 410
    assert nobody.post(link, {"csrfmiddlewaretoken": token}).status_code == 410
    assert codes(lease).count("kept") == 1


def test_a_member_who_presses_the_mails_button_signs_for_it(lease: Lease, link: str, page: Client, user: User) -> None:
    assert page.post(link).status_code == 200
    assert lease.events.get(code="kept").actor_label == user.email


def test_the_link_is_worth_nothing_for_another_lease_or_after_the_release(
    world: World, lease: Lease, link: str
) -> None:
    assert Client().get(link[:-1] + ("A" if link[-1] != "A" else "B")).status_code == 404
    world.quiet(lease, 5)
    assert state(lease) == (State.STOPPING, EndReason.IDLE)
    assert Client().get(link).status_code == 410
    assert Client().post(link).status_code == 410


def test_the_link_ends_when_the_lease_is_used_again(world: World, lease: Lease, link: str) -> None:
    world.quiet(lease, 0.25, ssh_input=True)
    assert Client().get(link).status_code == 410


def test_who_may_only_look_may_not_keep(world: World, lease: Lease) -> None:
    viewer = make.make_user("viewer@example.test")
    Membership.objects.create(tenant=lease.tenant, user=viewer, role=Membership.Role.VIEWER)
    client = Client()
    client.force_login(viewer)
    client.post(reverse("lease-keep", args=[lease.pk]))
    lease.refresh_from_db()
    assert lease.kept_at is None


# --- the sweep and the samples ----------------------------------------------------------------------------------------


def test_what_came_in_since_the_sweep_looked_counts(world: World, lease: Lease) -> None:
    world.quiet(lease, 19.75)
    world.moment.shift(15)
    world.beat(lease)
    (due,) = idle_services.due(timezone.now())
    world.beat(lease, ssh_input=True)
    idle_services.settle(lease_id=due, actor=Actor.system("idle"))
    assert state(lease) == (State.RUNNING, "")


def test_a_lease_kept_in_the_same_second_stays(world: World, lease: Lease, user: User) -> None:
    world.quiet(lease, 19.75)
    world.moment.shift(15)
    world.beat(lease)
    (due,) = idle_services.due(timezone.now())
    services.keep_lease(lease=lease, actor=Actor.of_user(user))
    idle_services.settle(lease_id=due, actor=Actor.system("idle"))
    assert state(lease) == (State.RUNNING, "")


def test_a_heartbeat_keeps_the_samples_of_any_number_of_leases_in_two_queries(
    world: World, renter: User, tenant: Tenant, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    leases = [running(renter, tenant) for _ in range(8)]
    for many in (leases[:1], leases, leases):
        with django_assert_num_queries(4):  # with the begin and end of the transaction
            activity.record(dict.fromkeys(many, QUIET), timezone.now())
    assert LeaseActivity.objects.count() == 8


def test_the_sweep_looks_at_any_number_of_leases_in_one_query(
    world: World, renter: User, tenant: Tenant, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    leases = [running(renter, tenant) for _ in range(8)]
    activity.record(dict.fromkeys(leases, QUIET), timezone.now())
    with django_assert_num_queries(1):
        assert idle_services.due(timezone.now()) == []


@pytest.mark.parametrize(
    "said",
    [
        "nothing", [], {"covers_s": "15"}, {**QUIET, "gpu_percent": "95"}, {**QUIET, "gpu_percent": -1},
        {**QUIET, "ssh_input": "no"}, {**QUIET, "cpu_percent": True}, {**QUIET, "network_bytes_per_s": 1e300},
    ],
)  # fmt: skip
def test_nonsense_in_a_sample_is_unknown_and_costs_no_lease_its_confirmation(
    world: World, lease: Lease, said: Any
) -> None:
    world.moment.shift(15)
    held = {"id": lease.pk, "generation": 1, "phase": "running", "container_id": lease.container_id}
    world.send([{**held, "activity": said}])
    lease.refresh_from_db()
    assert lease.confirmed_at == timezone.now()
    row = LeaseActivity.objects.get(lease=lease)
    assert (row.active_at, row.active_known) == (timezone.now(), False)


def test_samples_of_another_container_or_of_a_foreign_lease_are_not_kept(world: World, lease: Lease) -> None:
    for wrong in ({"generation": 2}, {"container_id": "d" * 64}, {"phase": "stopping"}, {"id": "ls-other"}):
        held = {"id": lease.pk, "generation": 1, "phase": "running", "container_id": lease.container_id, **wrong}
        world.send([{**held, "activity": QUIET}])
    assert not LeaseActivity.objects.exists()


# --- shadow and off ---------------------------------------------------------------------------------------------------


def test_shadow_mode_only_notes_what_would_have_been_released_once_per_stretch(
    world: World, lease: Lease, settings: Any, operator: User
) -> None:
    settings.IDLE_MODE = "shadow"
    world.quiet(lease, 22)
    assert (state(lease), codes(lease)) == ((State.RUNNING, ""), ["idle_shadow"])
    assert notices.standing([lease]) == {}
    world.quiet(lease, 0.25, cpu_percent=50)
    world.quiet(lease, 11)
    assert codes(lease) == ["idle_shadow", "idle_shadow"]
    desk = Client()
    desk.force_login(operator)
    other = make.make_lease(lease.tenant)
    listed = desk.get(reverse("admin:rental_lease_changelist"), {"idle_shadow": "yes"}).content.decode()
    assert lease.pk in listed
    assert other.pk not in listed


def test_turning_it_off_releases_nothing_and_takes_warnings_back(world: World, lease: Lease, settings: Any) -> None:
    world.quiet(lease, 16)
    assert notices.standing([lease])
    settings.IDLE_MODE = "off"
    world.quiet(lease, 10)
    assert (state(lease), notices.standing([lease])) == ((State.RUNNING, ""), {})


# --- limits -----------------------------------------------------------------------------------------------------------


def quote(api: ApiClient, **values: Any) -> Any:
    return api.post("quotes", {"gpu_model": make.H100, **values}).json()


def test_off_nothing_and_zero_are_three_things_in_quote_and_lease(  # case D06
    api: ApiClient, renter: User, tenant: Tenant, node: Node, settings: Any
) -> None:
    assert quote(api)["inactive_timeout_s"] == quote(api, inactive_timeout_s=None)["inactive_timeout_s"] == 1800
    assert quote(api, inactive_timeout_s=0)["errors"]["inactive_timeout_s"]
    assert quote(api, inactive_timeout_s="off")["errors"]["inactive_timeout_s"]
    settings.IDLE_OFF_ALLOWED = True
    said = quote(api, inactive_timeout_s="off")
    assert said["inactive_timeout_s"] == "off"
    made = api.post("leases", {"quote": said["quote"]}).json()
    assert made["inactive_timeout_s"] == "off"  # as it is asked for: null would be the default
    assert Lease.objects.get(pk=made["id"]).inactive_timeout_s is None


def test_the_stricter_of_wish_and_portal_wins_and_is_in_the_quote(  # case D06
    api: ApiClient, renter: User, node: Node, settings: Any
) -> None:
    settings.IDLE_TIMEOUT_MAX_S = 7200
    said = quote(api, inactive_timeout_s=18_000)
    assert (said["inactive_timeout_s"], said["inactive_timeout_most_s"]) == (7200, 7200)
    assert quote(api, inactive_timeout_s=3600)["inactive_timeout_s"] == 3600
    settings.IDLE_TIMEOUT_MAX_S = 900
    assert quote(api)["inactive_timeout_s"] == 900
    made = api.post("leases", {"quote": quote(api)["quote"]}).json()
    assert made["inactive_timeout_s"] == 900


def test_the_rent_page_offers_what_the_portal_allows_and_shows_it_before_ordering(  # case D06
    page: Client, renter: User, tenant: Tenant, node: Node, settings: Any
) -> None:
    def options() -> list[str]:
        shown = page.get(reverse("rent")).content.decode()
        select = re.search(r'<select name="idle_timeout".*?</select>', shown, re.S)
        assert select
        return re.findall(r'value="(\w+)"', select[0])

    assert options() == ["900", "1800", "3600", "14400"]
    settings.IDLE_TIMEOUT_MAX_S = 7200
    settings.IDLE_OFF_ALLOWED = True
    assert options() == ["900", "1800", "3600", "7200", "off"]
    keys = list(renter.ssh_keys.values_list("pk", flat=True))
    form = {"gpu_model": make.H100, "gpu_count": 1, "plan": "on_demand", "ssh_keys": keys, "max_hours": "1"}
    panel = unescape(page.post(reverse("quote-panel"), {**form, "idle_timeout": "3600"}).content.decode())
    assert re.search(r"Released when idle for</dt><dd class=\"num\">1.h<", panel)
    assert "never" in page.post(reverse("quote-panel"), {**form, "idle_timeout": "off"}).content.decode()


def test_a_lease_without_a_limit_is_never_released_for_being_idle(
    world: World, renter: User, tenant: Tenant, settings: Any
) -> None:
    settings.IDLE_OFF_ALLOWED = True
    lease = running(renter, tenant, inactive_timeout_s="off")
    world.quiet(lease, 25)
    assert (state(lease), codes(lease)) == ((State.RUNNING, ""), [])


# --- what is shown ----------------------------------------------------------------------------------------------------


def test_the_api_tells_each_signal_and_when_it_would_be_released(world: World, lease: Lease, api: ApiClient) -> None:
    assert api.get(f"leases/{lease.pk}").json()["activity"] is None
    world.quiet(lease, 11, ssh_input=True)
    told = api.get(f"leases/{lease.pk}").json()["activity"]
    assert (told["state"], told["idle_since"], told["release_at"]) == ("active", None, None)
    world.quiet(lease, 6)
    told = api.get(f"leases/{lease.pk}").json()["activity"]
    assert told == {
        "state": "idle", "idle_since": "2026-03-01T12:11:00Z", "release_at": "2026-03-01T12:21:00Z",
        "last": "use", "last_at": "2026-03-01T12:11:00Z", "signal": "ssh_input", "known": True,
        "sampled_at": "2026-03-01T12:17:00Z",
        "signals": [
            {"name": "ssh_input", "value": False, "limit": None, "state": "idle",
             "last_active_at": "2026-03-01T12:11:00Z"},
            {"name": "gpu", "value": 0.0, "limit": 5.0, "state": "idle", "last_active_at": None},
            {"name": "cpu", "value": 0.4, "limit": 5.0, "state": "idle", "last_active_at": None},
            {"name": "network", "value": 120, "limit": 50000.0, "state": "idle", "last_active_at": None},
        ],
    }  # fmt: skip


def test_the_page_says_what_counted_last_and_has_the_button(world: World, lease: Lease, page: Client) -> None:
    address = reverse("lease", args=[lease.pk])
    assert "has not told yet what this lease does" in page.get(address).content.decode()
    world.quiet(lease, 11, gpu_percent=88.5)
    shown = unescape(page.get(address).content.decode())
    assert "GPU load" in shown
    assert "88.5 %" in shown
    assert reverse("lease-keep", args=[lease.pk]) not in shown
    world.quiet(lease, 6)
    shown = unescape(page.get(address).content.decode())
    assert "Released, with everything in it, unless it is used:" in shown
    assert shown.count(reverse("lease-keep", args=[lease.pk])) == 2


def test_the_receipt_of_an_idle_lease_says_why(world: World, lease: Lease, page: Client) -> None:
    world.quiet(lease, 20)
    shown = unescape(page.get(reverse("lease-receipt", args=[lease.pk])).content.decode())
    assert "Idle for 10 min." in shown
    assert "from 5 %" in shown


def test_what_idle_means_is_public_and_has_this_portals_numbers(db: None, settings: Any) -> None:
    settings.IDLE_NETWORK_BYTES_PER_S = 80_000
    shown = unescape(Client().get(reverse("idle-rules")).content.decode())
    assert "from 80 kB/s" in shown
    assert "The first 15 min after ready do not count" in shown


def test_warnings_leave_after_commit_only(world: World, lease: Lease) -> None:
    world.quiet(lease, 14.75)
    world.moment.shift(15)
    world.beat(lease)
    with TestCase.captureOnCommitCallbacks() as after:
        tasks.sweep_idle()
    assert after


def test_a_quote_from_before_keeps_its_idle_limit(world: World, renter: User, tenant: Tenant, settings: Any) -> None:
    token = a_quote(renter, tenant, inactive_timeout_s=7200)
    settings.IDLE_TIMEOUT_MAX_S = 900
    made, _ = services.request_lease(tenant=tenant, actor=Actor.of_user(renter), quote_token=token)
    assert made.inactive_timeout_s == 7200
