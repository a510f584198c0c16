"""Adding, enrolling, hearing from, draining and revoking nodes."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.utils import timezone

from nodes import services, signals
from nodes.models import EnrolmentToken, Gpu, GpuSlot, Node
from portal.errors import DomainError, IllegalTransition, InvalidInput
from portal.models import AuditEvent
from tests import make
from tests.nodes.agentlike import UUIDS, enrolment, gpu, heartbeat, inventory

if TYPE_CHECKING:
    from typing import Any

    from pytest_django import DjangoCaptureOnCommitCallbacks

    from portal.actor import Actor

pytestmark = pytest.mark.django_db


def test_adding_a_node_gives_one_command_that_makes_the_machine_this_node(actor: Actor) -> None:
    node, token = services.add_node(name="ams-gpu-02", site="ams", actor=actor)
    command = services.enrol_command(node, token)
    assert command.startswith("sudo python3 -m nodes.agent enrol --portal http")
    assert f"--token {token}" in command
    assert "--ssh" not in command

    answer = services.enrol(payload=enrolment(token), peer_ip="192.0.2.7")
    node.refresh_from_db()
    assert answer["node_id"] == node.pk
    assert answer["node_name"] == "ams-gpu-02"
    assert answer["queue"] == f"node.{node.pk}"
    assert answer["node_token"].startswith("lnt_")
    assert node.ssh_host == "192.0.2.7"
    assert node.status() == "silent"
    assert [e.action for e in AuditEvent.objects.order_by("pk")] == [
        "node.added",
        "node.enrolment_token_made",
        "node.enrolled",
    ]


def test_no_secret_of_a_node_is_stored(actor: Actor) -> None:
    node, token = services.add_node(name="n1", actor=actor)
    answer = services.enrol(payload=enrolment(token), peer_ip=None)
    node.refresh_from_db()
    stored = repr([*Node.objects.values(), *EnrolmentToken.objects.values(), *AuditEvent.objects.values()])
    assert token not in stored
    assert answer["node_token"] not in stored


def test_the_command_carries_the_address_that_the_operator_gave(actor: Actor) -> None:
    node, token = services.add_node(name="n1", ssh_host="gpu.example.test", ssh_port=2201, actor=actor)
    assert services.enrol_command(node, token).endswith("--ssh-host gpu.example.test --ssh-port 2201")


@pytest.mark.parametrize("name", ["", "..", "a" * 64, "x" * 300, "AMS-01", "a_b", "-a", "a-", "a/b", "a b", "ä", "a\n"])
def test_a_name_that_is_not_plain_is_refused_with_the_accepted_form(name: str, actor: Actor) -> None:
    # case G02
    with pytest.raises(InvalidInput, match="lower-case letters, digits and hyphens"):
        services.add_node(name=name, actor=actor)
    assert not Node.objects.exists()


def test_a_name_in_use_is_refused_and_free_again_after_revocation(actor: Actor) -> None:
    # case G02
    first, _ = services.add_node(name="n1", actor=actor)
    with pytest.raises(InvalidInput, match="in use"):
        services.add_node(name="n1", actor=actor)
    services.revoke(node=first, actor=actor)
    second, _ = services.add_node(name="n1", actor=actor)
    assert second.pk != first.pk


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("ssh_host", {"ssh_host": "a b"}),
        ("ssh_host", {"ssh_host": "-oProxyCommand=x"}),
        ("ssh_host", {"ssh_host": "fe80::1%eth0"}),
        ("ssh_port", {"ssh_port": 0}),
        ("ssh_port", {"ssh_port": 65_536}),
        ("site", {"site": "s" * 64}),
    ],
)
def test_a_wrong_value_of_a_new_node_is_refused_by_name(field: str, values: dict[str, Any], actor: Actor) -> None:
    with pytest.raises(InvalidInput) as refused:
        services.add_node(name="n1", actor=actor, **values)
    assert list(refused.value.errors) == [field]


def test_unknown_used_and_expired_tokens_look_the_same(actor: Actor) -> None:
    # case G02
    node, used = services.add_node(name="n1", actor=actor)
    services.enrol(payload=enrolment(used), peer_ip=None)
    _, expired = services.add_node(name="n2", actor=actor)
    EnrolmentToken.objects.filter(used_at__isnull=True).update(expires_at=timezone.now() - timedelta(seconds=1))
    before = Node.objects.get(pk=node.pk).token_digest
    answers = []
    for token in (used, expired, "lne_unknown"):
        with pytest.raises(DomainError) as refused:
            services.enrol(payload=enrolment(token), peer_ip=None)
        answers.append((refused.value.status, refused.value.code, refused.value.detail))
    assert len(set(answers)) == 1
    assert answers[0][:2] == (401, "enrolment_token_invalid")
    assert Node.objects.get(pk=node.pk).token_digest == before


def test_a_new_command_ends_the_one_before(actor: Actor) -> None:
    node, first = services.add_node(name="n1", actor=actor)
    second = services.new_enrolment_token(node=node, actor=actor)
    with pytest.raises(services.EnrolmentTokenInvalid):
        services.enrol(payload=enrolment(first), peer_ip=None)
    services.enrol(payload=enrolment(second), peer_ip=None)


def test_two_machines_with_equal_names_and_ids_become_two_nodes(actor: Actor) -> None:
    # case G02
    ids = set()
    for name in ("n1", "n2"):
        _, token = services.add_node(name=name, actor=actor)
        ids.add(services.enrol(payload=enrolment(token, hostname="same", machine_id="cloned"), peer_ip=None)["node_id"])
    assert len(ids) == 2


def test_enrolling_a_row_again_locks_the_old_machine_out_and_sells_nothing_before_it_is_proven(actor: Actor) -> None:
    node = make.make_node(gpus=2)
    old = make.make_node_secret(node)
    answer = services.enrol(
        payload=enrolment(services.new_enrolment_token(node=node, actor=actor), machine_id="another"), peer_ip=None
    )
    fresh = Node.objects.get(pk=node.pk)
    assert answer["node_id"] == node.pk
    assert answer["node_token"] != old
    assert fresh.token_digest != node.token_digest
    assert fresh.machine_id == "another"
    assert not Node.objects.selling().exists()
    assert fresh.gpus.count() == 2


def test_a_heartbeat_counts_by_our_clock_and_shows_the_skew(node: Node) -> None:
    # case B07
    for clock, low, high in [
        ("1970-01-01T00:00:00Z", -2_000_000_000, -1_000_000_000),
        ("2100-01-01T00:00:00Z", 2_000_000_000, 2_000_000_000),
        ("9999-12-31T23:59:59+00:00", 2_000_000_000, 2_000_000_000),
        ((timezone.now() - timedelta(minutes=10)).isoformat(), -605, -595),
        ((timezone.now() + timedelta(minutes=10)).isoformat(), 595, 605),
    ]:
        Node.objects.filter(pk=node.pk).update(last_seen_at=timezone.now() - timedelta(hours=1))
        services.record_heartbeat(node=node, payload=heartbeat(clock=clock))
        node.refresh_from_db()
        assert node.status() == "ready"
        assert node.clock_skew_s is not None
        assert low <= node.clock_skew_s <= high


@pytest.mark.parametrize("clock", ["", "yesterday", "10000-01-01T00:00:00Z"])
def test_a_clock_that_tells_no_time_does_not_make_a_node_silent(clock: str, node: Node) -> None:
    # case B07
    Node.objects.filter(pk=node.pk).update(last_seen_at=None)
    services.record_heartbeat(node=node, payload=heartbeat(clock=clock))
    node.refresh_from_db()
    assert node.status() == "ready"
    assert node.clock_skew_s is None


@pytest.mark.parametrize(
    ("ok", "checks", "passed"),
    [
        (True, [{"name": "engine", "ok": True, "detail": ""}], True),
        (True, [{"name": "engine", "ok": True}, {"name": "gpu", "ok": False, "detail": "no device"}], False),
        (False, [{"name": "engine", "ok": True}], False),
        (True, [], False),
    ],
)
def test_a_preflight_passes_only_when_every_check_did(
    *, ok: bool, checks: list[dict[str, Any]], passed: bool, node: Node
) -> None:
    services.record_preflight(node=node, payload={"ok": ok, "checks": checks})
    node.refresh_from_db()
    assert node.preflight_ok is passed
    assert Node.objects.selling().exists() is passed


def test_draining_stops_selling_and_undraining_brings_the_node_back(actor: Actor) -> None:
    # case G06
    node = make.make_node(gpus=1)
    for _ in range(2):
        services.drain(node=node, actor=actor)
    assert not Gpu.objects.leasable().exists()
    services.record_inventory(node=node, payload=inventory([gpu(node.gpus.get().uuid)]))
    services.record_heartbeat(node=node, payload=heartbeat())
    assert not Gpu.objects.leasable().exists(), "an agent that restarts does not end the drain"
    GpuSlot.objects.update(used_milli=1000)
    for _ in range(2):
        services.undrain(node=node, actor=actor)
    assert Gpu.objects.leasable().count() == 1
    assert GpuSlot.objects.get().used_milli == 1000
    assert [e.action for e in AuditEvent.objects.order_by("pk")] == ["node.drained", "node.undrained"]


def test_revoking_voids_tokens_for_good_and_keeps_rows(
    actor: Actor, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    node = make.make_node(gpus=2)
    pending = services.new_enrolment_token(node=node, actor=actor)
    held = node.gpus.first()
    assert held is not None
    held.slots.update(used_milli=1000)
    heard: list[Node] = []

    def hear(node: Node, **_: Any) -> None:
        heard.append(node)

    signals.node_revoked.connect(hear)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            services.revoke(node=node, actor=actor)
            services.revoke(node=node, actor=actor)
    finally:
        signals.node_revoked.disconnect(hear)
    assert heard == [node]
    assert Node.objects.get(pk=node.pk).status() == "revoked"
    assert list(Gpu.objects.present()) == [held], "a GPU under a lease is retired when it is free"
    assert Gpu.objects.count() == 2
    for call in (services.drain, services.undrain, services.new_enrolment_token):
        with pytest.raises(IllegalTransition) as refused:
            call(node=node, actor=actor)
        assert refused.value.code == "node_revoked"
    with pytest.raises(services.EnrolmentTokenInvalid):
        services.enrol(payload=enrolment(pending), peer_ip=None)


def test_a_quarantined_gpu_comes_back_only_by_an_operator(node: Node, actor: Actor) -> None:
    services.record_inventory(node=node, payload=inventory([gpu(UUIDS[0]), gpu(UUIDS[1])]))
    other = make.make_node(gpus=1)
    uuids = [UUIDS[0], other.gpus.get().uuid]
    assert services.quarantine(uuids=uuids, node=node, note="memory not freed") == 1
    assert services.quarantine(uuids=uuids, node=node, note="again") == 0
    services.record_inventory(node=node, payload=inventory([gpu(UUIDS[0]), gpu(UUIDS[1])]))
    card = Gpu.objects.get(uuid=UUIDS[0])
    assert (card.health, card.health_note) == ("quarantined", "memory not freed")
    assert Gpu.objects.filter(health="healthy").count() == 2
    services.return_gpu(gpu=card, actor=actor, note="reset by hand")
    assert Gpu.objects.get(uuid=UUIDS[0]).health == "healthy"
    with pytest.raises(IllegalTransition):
        services.return_gpu(gpu=card, actor=actor)
    assert AuditEvent.objects.get(action="gpu.returned").data == {"note": "reset by hand"}
