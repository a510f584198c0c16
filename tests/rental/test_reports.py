"""What nodes report: the whole matrix of events and states, the proofs, heartbeats, what a node may see."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from nodes.models import Gpu, GpuSlot, Node
from portal.actor import Actor
from portal.errors import InvalidInput, NotFound
from portal.models import Tenant, User
from rental import reports, services
from rental.models import Lease
from rental.payloads import EVENTS
from rental.states import EndReason, State
from tests import make
from tests.rental.factories import good_evidence, order, report, running

pytestmark = pytest.mark.django_db

# Every event in every state a node can report in: the state after it, and the end reason where one is set by it.
GIVEN = [State.ASSIGNED, State.STARTING, State.RUNNING, State.STOPPING, State.ENDED, State.INTERRUPTED]
OVER = ["ended", "interrupted"]
NO_LAUNCH = "failed_launch"
AFTER: dict[str, list[str]] = {
    # event            assigned                 starting                 running                  stopping
    "pulling":         ["assigned",             "starting",              "running",               "stopping", *OVER],
    "starting":        ["starting",             "starting",              "running",               "stopping", *OVER],
    "started":         ["starting",             "starting",              "running",               "stopping", *OVER],
    "ready":           ["running",              "running",               "running",               "stopping", *OVER],
    "failed":          [f"stopping {NO_LAUNCH}", f"stopping {NO_LAUNCH}", "stopping released",     "stopping", *OVER],
    "exited":          [f"stopping {NO_LAUNCH}", f"stopping {NO_LAUNCH}", "stopping released",     "stopping", *OVER],
    "deadline":        ["assigned",             "starting",              "stopping max_duration", "stopping", *OVER],
    "ssh_down":        ["assigned",             "starting",              "running",               "stopping", *OVER],
    "ssh_up":          ["assigned",             "starting",              "running",               "stopping", *OVER],
    "stopped":         [f"stopping {NO_LAUNCH}", f"stopping {NO_LAUNCH}", "stopping node_lost",    "stopping", *OVER],
    "cleaned":         [f"ended {NO_LAUNCH}",   f"ended {NO_LAUNCH}",    "ended node_lost",       "ended",    *OVER],
    "cleaning_failed": [f"ended {NO_LAUNCH}",   f"ended {NO_LAUNCH}",    "ended node_lost",       "ended",    *OVER],
}  # fmt: skip
CELLS = [(event, before, after) for event, row in AFTER.items() for before, after in zip(GIVEN, row, strict=True)]


def test_the_matrix_has_every_event() -> None:
    assert set(AFTER) == set(EVENTS) == set(reports.HANDLERS)


@pytest.mark.parametrize(("event", "before", "expected"), CELLS)
def test_every_event_in_every_state_has_one_answer_however_often_it_comes(
    renter: User, tenant: Tenant, node: Node, event: str, before: State, expected: str
) -> None:
    lease = make.make_lease(tenant, state=before, node=node, end_reason="operator")
    evidence = good_evidence(lease) if lease.allocations.exists() and event == "ready" else {}
    state, _, reason = expected.partition(" ")
    for _ in range(2):
        answer = report(lease, event, evidence=evidence)
        assert answer["state"] == state
        want = {"assigned": "run", "starting": "run", "running": "run", "stopping": "stop"}.get(state, "none")
        assert answer["want"] == want
        lease.refresh_from_db()
        if reason:
            assert lease.end_reason == reason
        counted = lease.events.count()
        segments = lease.segments.count()
    assert lease.events.count() == counted
    assert lease.segments.count() == segments
    holds_devices = GpuSlot.objects.filter(used_milli__gt=0).exists()
    assert holds_devices == (state in {"assigned", "starting", "running", "stopping"})


def test_reports_in_any_order_end_in_the_same_place(renter: User, tenant: Tenant, node: Node) -> None:
    lease = order(renter, tenant)
    for event in ("ready", "started", "pulling", "starting", "cleaned", "stopped", "ready", "exited"):
        report(
            lease,
            event,
            evidence=good_evidence(lease) if event == "ready" and lease.allocations.filter(released_at=None) else {},
        )
    lease.refresh_from_db()
    assert lease.state == State.ENDED
    assert not GpuSlot.objects.filter(used_milli__gt=0).exists()


def test_a_launch_with_other_devices_than_leased_fails_free_of_charge(renter: User, tenant: Tenant, node: Node) -> None:
    lease = order(renter, tenant)
    report(lease, "started")
    others = Gpu.objects.exclude(slots__allocations__lease=lease).values_list("uuid", flat=True)
    for seen in ([], [*good_evidence(lease)["devices_seen"], others[0]], [others[0]]):
        fresh = order(renter, tenant)
        assert report(fresh, "ready", evidence={**good_evidence(fresh), "devices_seen": seen})["want"] == "stop"
        fresh.refresh_from_db()
        assert (fresh.state, fresh.end_reason) == (State.STOPPING, EndReason.FAILED_GPU)
        assert fresh.segments.count() == 0


def test_a_real_gpu_must_have_been_seen_through_its_driver(renter: User, tenant: Tenant, node: Node) -> None:
    for simulated, ended in ((False, EndReason.FAILED_GPU), (True, "")):
        lease = order(renter, tenant)
        assert lease.node is not None
        Node.objects.filter(pk=lease.node.pk).update(simulated=simulated)
        report(lease, "ready", evidence={**good_evidence(lease), "devices_source": "proc1_environ"})
        lease.refresh_from_db()
        assert lease.end_reason == ended


def test_a_gateway_that_has_not_the_renters_keys_fails_the_launch(renter: User, tenant: Tenant, node: Node) -> None:
    for change in ([], ["SHA256:somebody-elses"]):
        lease = order(renter, tenant)
        evidence = good_evidence(lease)
        keys = [*evidence["keys_seen"], *change] if change else []
        assert report(lease, "ready", evidence={**evidence, "keys_seen": keys})["state"] == "stopping"
        lease.refresh_from_db()
        assert lease.end_reason == EndReason.FAILED_LAUNCH
        assert lease.segments.count() == 0


def test_a_key_added_while_it_starts_does_not_fail_the_launch(renter: User, tenant: Tenant, node: Node) -> None:
    lease = order(renter, tenant)
    before = good_evidence(lease)
    make.make_key(renter)
    assert report(lease, "ready", evidence=before)["state"] == "running"


@pytest.mark.parametrize("failure", ["failed_image", "failed_gpu", "failed_launch"])
def test_a_failed_launch_costs_nothing_and_frees_everything(
    renter: User, tenant: Tenant, node: Node, failure: str
) -> None:  # case F01
    lease = order(renter, tenant)
    report(lease, "failed", failure=failure, detail="manifest unknown")
    report(lease, "cleaned")
    lease.refresh_from_db()
    assert (lease.state, lease.end_reason, lease.end_detail) == (State.ENDED, failure, "manifest unknown")
    assert not GpuSlot.objects.filter(used_milli__gt=0).exists()
    account = tenant.accounts.get()
    assert (account.held_ticks, account.balance_ticks) == (0, 100_000_000 * 3600)


def test_an_end_by_itself_is_told_with_its_cause(renter: User, tenant: Tenant, node: Node) -> None:
    lease = running(renter, tenant)
    report(lease, "exited", evidence={"exit_code": 137, "oom_killed": True})
    lease.refresh_from_db()
    assert lease.end_reason == EndReason.RELEASED
    assert "memory was used up" in lease.end_detail


def test_devices_that_did_not_come_clean_are_never_offered(
    renter: User, tenant: Tenant, node: Node
) -> None:  # case G07
    lease = running(renter, tenant, gpu_count=2)
    services.stop_lease(lease=lease, actor=Actor.of_user(renter))
    dirty, clean = good_evidence(lease)["devices_seen"]
    steps = [{"name": "gpu_memory_base", "ok": False, "detail": "70 GB in use"}]
    foreign = Gpu.objects.exclude(uuid__in=[dirty, clean]).first()
    assert foreign is not None
    report(lease, "cleaning_failed", evidence={"steps": steps, "quarantine": [dirty, foreign.uuid]})
    lease.refresh_from_db()
    assert lease.state == State.ENDED
    assert list(Gpu.objects.filter(health="quarantined").values_list("uuid", flat=True)) == [dirty]
    assert "gpu_memory_base" in Gpu.objects.get(uuid=dirty).health_note
    assert Gpu.objects.leasable().filter(uuid=clean, slots__used_milli=0).exists()


def test_a_node_sees_and_reports_its_own_leases_only(renter: User, tenant: Tenant, node: Node) -> None:
    lease = running(renter, tenant)
    other = make.make_node(gpus=1)
    with pytest.raises(NotFound):
        report(lease, "exited", node=other)
    with pytest.raises(NotFound):
        reports.handle(node=node, lease_id="ls-unknown", payload={"generation": 1, "event": "exited"})
    unknown = reports.confirm(
        node=other,
        leases=[{"id": lease.pk, "generation": 1, "phase": "running", "container_id": "c" * 64}],
        now=timezone.now(),
    )
    assert unknown == [lease.pk]


def test_a_report_of_another_generation_is_stale(renter: User, tenant: Tenant, node: Node) -> None:
    lease = running(renter, tenant)
    for generation in (0, 2):
        with pytest.raises(reports.StaleGeneration) as refused:
            report(lease, "cleaned", generation=generation)
        assert (refused.value.status, refused.value.code) == (409, "stale_generation")


def test_text_from_images_cannot_break_a_report(renter: User, tenant: Tenant, node: Node) -> None:
    lease = order(renter, tenant)
    nasty = "a\x00b\x1b[31m" + "x" * 5000
    report(lease, "failed", failure="failed_image", detail=nasty)
    lease.refresh_from_db()
    assert lease.end_detail.startswith("a\ufffdb\ufffd[31mx")
    assert len(lease.end_detail) == 500


@pytest.mark.parametrize(
    "payload",
    [
        {}, {"generation": 1}, {"event": "ready"}, {"generation": "1", "event": "ready"}, [], "ready", None,
        {"generation": 1, "event": "won"}, {"generation": -1, "event": "ready"},
        {"generation": 1, "event": "failed", "failure": "bad_luck"},
        {"generation": 1, "event": "ready", "evidence": []}, {"generation": 1, "event": "ready", "detail": 7},
        {"generation": 1, "event": "ready", "evidence": {"devices_seen": [1]}},
        {"generation": 1, "event": "cleaning_failed", "evidence": {"quarantine": ["../x"]}},
        {"generation": 2**40, "event": "ready"},
    ],
)  # fmt: skip
def test_nonsense_is_refused_and_changes_nothing(renter: User, tenant: Tenant, node: Node, payload: Any) -> None:
    lease = order(renter, tenant)
    with pytest.raises(InvalidInput):
        reports.handle(node=node, lease_id=lease.pk, payload=payload)
    assert Lease.objects.get(pk=lease.pk).state == State.ASSIGNED


# --- over HTTP --------------------------------------------------------------------------------------------------------


class Agent:
    """A node's HTTP client."""

    def __init__(self, node: Node) -> None:
        self.http = Client(headers={"Authorization": f"Bearer {make.make_node_secret(node)}"})

    def get(self, path: str) -> Any:
        return self.http.get(f"/api/node/v1/{path}")

    def post(self, path: str, body: Any) -> Any:
        return self.http.post(f"/api/node/v1/{path}", json.dumps(body), content_type="application/json")


def beat(*leases: Lease, **values: Any) -> dict[str, Any]:
    held = [
        {"id": lease.pk, "generation": 1, "phase": "running", "container_id": lease.container_id} for lease in leases
    ]
    return {"boot_id": "b", "agent_run": "r", "clock": "1970-01-01T00:00:00Z", "leases": held, "gpus": [], **values}


def test_the_whole_conversation_over_http(renter: User, tenant: Tenant, node: Node) -> None:
    agent = Agent(node)
    lease = order(renter, tenant, gpu_count=2)
    (word,) = agent.get("desired").json()["leases"]
    assert word.pop("notices") == []
    assert len(word.pop("ssh_ca")) == 1
    assert word == {
        "id": lease.pk, "generation": 1, "want": "run", "stop_reason": "",
        "devices": good_evidence(lease)["devices_seen"],
        "image": "lessor/workspace:1", "cpus_milli": lease.cpus_milli, "memory_bytes": lease.memory_bytes,
        "shm_bytes": lease.memory_bytes // 2, "pids": 4096, "workspace_bytes": lease.workspace_bytes,
        "authorized_keys": [renter.ssh_keys.get().line], "deadline_s": None, "stop_grace_s": 30,
    }  # fmt: skip
    path = f"leases/{lease.pk}/report"
    base = {"generation": 1, "detail": "", "container_id": "c" * 64, "failure": "", "evidence": {}}
    assert agent.post(path, {**base, "event": "pulling", "detail": "12 %"}).json() == {
        "state": "assigned",
        "want": "run",
    }
    assert Lease.objects.get().progress == "12 %"
    for event in ("starting", "started"):
        assert agent.post(path, {**base, "event": event}).json() == {"state": "starting", "want": "run"}
    ready = agent.post(path, {**base, "event": "ready", "evidence": good_evidence(lease)})
    assert ready.json() == {"state": "running", "want": "run"}
    lease.refresh_from_db()
    assert lease.evidence["ready"]["ssh_ms"] == 138
    assert 86_390 < agent.get(f"desired?lease={lease.pk}").json()["leases"][0]["deadline_s"] <= 86_400
    assert agent.post("heartbeat", beat(lease)).json()["unknown"] == []
    before = lease.confirmed_at
    lease.refresh_from_db()
    assert before is not None
    assert lease.confirmed_at is not None
    assert lease.confirmed_at > before
    services.stop_lease(lease=lease, actor=Actor.of_user(renter))
    (word,) = agent.get("desired").json()["leases"]
    assert (word["want"], word["stop_reason"]) == ("stop", "released")
    assert agent.post(path, {**base, "event": "cleaned"}).json() == {"state": "ended", "want": "none"}
    assert agent.get("desired").json()["leases"] == []
    assert agent.get(f"desired?lease={lease.pk}").json()["leases"] == []
    assert agent.post("heartbeat", beat(lease)).json()["unknown"] == [lease.pk]


def test_the_node_api_is_closed_to_everybody_else(renter: User, tenant: Tenant, node: Node) -> None:
    lease = order(renter, tenant)
    other = Agent(make.make_node(gpus=1))
    assert other.get("desired").json()["leases"] == []
    assert other.get(f"desired?lease={lease.pk}").json()["leases"] == []
    refused = other.post(f"leases/{lease.pk}/report", {"generation": 1, "event": "cleaned"})
    assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
    anonymous = Client()
    token = make.make_token(renter)[1]
    for client in (anonymous, Client(headers={"Authorization": f"Bearer {token}"})):
        assert client.get("/api/node/v1/desired").status_code == 401
        assert client.post("/api/node/v1/heartbeat", "{}", content_type="application/json").status_code == 401


def test_a_heartbeat_vouches_only_for_the_right_container(renter: User, tenant: Tenant, node: Node) -> None:
    lease = running(renter, tenant)
    before = lease.confirmed_at
    for wrong in ({"phase": "stopping"}, {"generation": 2}, {"container_id": "d" * 64}):
        said = {"id": lease.pk, "generation": 1, "phase": "running", "container_id": lease.container_id, **wrong}
        assert reports.confirm(node=node, leases=[said], now=timezone.now()) == []
        lease.refresh_from_db()
        assert lease.confirmed_at == before


@pytest.mark.parametrize("leases", ["x", [1], [{}], [{"id": "ls-1", "generation": "1"}], [{"id": 5, "generation": 1}]])
def test_a_heartbeat_with_nonsense_is_a_clear_refusal(node: Node, leases: Any) -> None:
    answer = Agent(node).post("heartbeat", beat(leases=leases))
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")


def test_heartbeat_and_desired_need_few_queries_whatever_the_number_of_leases(
    renter: User, tenant: Tenant, node: Node, django_assert_max_num_queries: Any
) -> None:
    leases = [running(renter, tenant) for _ in range(6)]
    agent = Agent(node)
    with django_assert_max_num_queries(10):
        agent.post("heartbeat", beat(*leases))
    with django_assert_max_num_queries(5):
        assert len(agent.get("desired").json()["leases"]) == 6
