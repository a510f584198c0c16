"""What is warned of and released for being idle and what is not, in earnest, in shadow mode and when it is off."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from rental import desired, idle_services, notices, tasks
from rental.models import Lease, LeaseActivity, LeaseNotice
from rental.states import EndReason, State
from tests import make
from tests.rental.factories import running
from tests.rental.idle.world import NOON, QUIET, World, codes, state

if TYPE_CHECKING:
    from portal.models import Tenant, User
    from tests.clients import ApiClient

pytestmark = pytest.mark.django_db


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
