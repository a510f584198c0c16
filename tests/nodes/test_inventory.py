"""What an inventory does to rows, slots and health of GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.utils import timezone

from nodes import services, signals
from nodes.models import Gpu, GpuSlot
from tests import make
from tests.nodes.agentlike import UUIDS, gpu, heartbeat, inventory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django import DjangoCaptureOnCommitCallbacks

    from nodes.models import Node
    from portal.actor import Actor

pytestmark = pytest.mark.django_db


@pytest.fixture
def lost() -> Iterator[list[str]]:
    """UUIDs of which the signal told."""
    heard: list[str] = []

    def hear(gpu: Gpu, **_: Any) -> None:
        heard.append(gpu.uuid)

    signals.gpu_lost.connect(hear)
    yield heard
    signals.gpu_lost.disconnect(hear)


def test_an_inventory_makes_a_row_and_one_slot_per_gpu_once(node: Node) -> None:
    for _ in range(2):
        services.record_inventory(node=node, payload=inventory([gpu(uuid, index=n) for n, uuid in enumerate(UUIDS)]))
    assert Gpu.objects.leasable().count() == 8
    assert GpuSlot.objects.count() == 8
    node.refresh_from_db()
    assert (node.cpu_cores, node.memory_bytes, node.driver_version) == (64, 512 << 30, "570.86.15")
    assert node.capabilities == {"gpu_request": "cdi", "runtimes": ["runc"], "workspace_quota": True}
    assert node.notices == []


def test_a_card_with_mig_on_is_shown_but_not_leasable(node: Node) -> None:
    services.record_inventory(node=node, payload=inventory([gpu(UUIDS[0], mig_mode=True), gpu(UUIDS[1])]))
    assert [card.uuid for card in Gpu.objects.leasable()] == [UUIDS[1]]
    assert Gpu.objects.present().count() == 2


def test_only_the_missing_card_is_out_though_indexes_shift(
    node: Node, lost: list[str], django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    # case G04
    services.record_inventory(node=node, payload=inventory([gpu(uuid, index=n) for n, uuid in enumerate(UUIDS)]))
    rest = [uuid for uuid in UUIDS if uuid != UUIDS[3]]
    with django_capture_on_commit_callbacks(execute=True):
        services.record_inventory(node=node, payload=inventory([gpu(uuid, index=n) for n, uuid in enumerate(rest)]))
    assert {card.uuid for card in Gpu.objects.leasable()} == set(rest)
    assert Gpu.objects.get(uuid=UUIDS[7]).index == 6
    assert lost == [UUIDS[3]]
    services.record_inventory(node=node, payload=inventory([gpu(uuid, index=n) for n, uuid in enumerate(UUIDS)]))
    assert Gpu.objects.leasable().count() == 8
    assert GpuSlot.objects.count() == 8


def test_a_fault_in_a_heartbeat_takes_one_card_out_and_its_end_brings_it_back(
    node: Node, lost: list[str], django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    # case G04
    services.record_inventory(node=node, payload=inventory([gpu(UUIDS[0]), gpu(UUIDS[1])]))
    broken = {"uuid": UUIDS[0], "healthy": False, "fault": "Xid 79"}
    fine = {"uuid": UUIDS[1], "healthy": True, "fault": ""}
    with django_capture_on_commit_callbacks(execute=True):
        for _ in range(2):
            services.record_heartbeat(node=node, payload=heartbeat(gpus=[broken, fine]))
    card = Gpu.objects.get(uuid=UUIDS[0])
    assert (card.health, card.health_note) == ("lost", "Xid 79")
    assert lost == [UUIDS[0]], "told once, not with each heartbeat"
    assert Gpu.objects.leasable().count() == 1
    services.record_heartbeat(node=node, payload=heartbeat(gpus=[{**broken, "healthy": True, "fault": ""}]))
    assert Gpu.objects.leasable().count() == 2


def test_a_heartbeat_changes_nothing_on_cards_of_others(node: Node) -> None:
    other = make.make_node(gpus=1)
    theirs = other.gpus.get().uuid
    services.record_heartbeat(node=node, payload=heartbeat(gpus=[{"uuid": theirs, "healthy": False, "fault": "x"}]))
    assert Gpu.objects.get(uuid=theirs).health == "healthy"


def test_a_card_present_on_another_node_is_refused_and_shown(node: Node) -> None:
    # case G02
    owner = make.make_node("owner", gpus=1)
    uuid = owner.gpus.get().uuid
    services.record_inventory(node=node, payload=inventory([gpu(uuid), gpu(UUIDS[1])]))
    node.refresh_from_db()
    assert [card.uuid for card in node.gpus.all()] == [UUIDS[1]]
    assert len(node.notices) == 1
    assert uuid in node.notices[0]
    assert "owner" in node.notices[0]
    assert Gpu.objects.leasable().filter(uuid=uuid).count() == 1
    services.record_inventory(node=node, payload=inventory([gpu(UUIDS[1])]))
    node.refresh_from_db()
    assert node.notices == []


@pytest.mark.parametrize("how", ["revoked", "lost"])
def test_a_card_moves_to_another_machine_once_nobody_holds_it(how: str, node: Node, actor: Actor) -> None:
    # case G02
    owner = make.make_node("owner", gpus=1)
    card = owner.gpus.get()
    card.slots.update(used_milli=1000)
    if how == "revoked":
        services.revoke(node=owner, actor=actor)
    else:
        services.record_inventory(node=owner, payload=inventory([]))
    services.record_inventory(node=node, payload=inventory([gpu(card.uuid)]))
    node.refresh_from_db()
    assert "still held by a lease" in node.notices[0]
    assert not node.gpus.exists()
    card.slots.update(used_milli=0)
    services.record_inventory(node=node, payload=inventory([gpu(card.uuid)]))
    assert node.gpus.get().health == "healthy"
    assert node.gpus.get().slots.get().used_milli == 0
    card.refresh_from_db()
    assert card.retired_at is not None


def test_a_quarantined_card_stays_quarantined_in_another_machine(node: Node, actor: Actor) -> None:
    owner = make.make_node("owner", gpus=1)
    card = owner.gpus.get()
    services.quarantine(uuids=[card.uuid], node=owner, note="canary seen")
    card.slots.update(used_milli=1000)
    services.revoke(node=owner, actor=actor)
    card.slots.update(used_milli=0)
    services.record_inventory(node=node, payload=inventory([gpu(card.uuid)]))
    assert (node.gpus.get().health, node.gpus.get().health_note) == ("quarantined", "canary seen")


def test_a_quarantined_card_that_is_pulled_out_and_put_back_stays_quarantined(node: Node) -> None:
    services.record_inventory(node=node, payload=inventory([gpu(UUIDS[0])]))
    services.quarantine(uuids=[UUIDS[0]], node=node, note="memory not freed")
    broken = [{"uuid": UUIDS[0], "healthy": False, "fault": "Xid 79"}]
    for _ in range(2):
        services.record_inventory(node=node, payload=inventory([]))
        services.record_heartbeat(node=node, payload=heartbeat(gpus=broken))
        services.record_inventory(node=node, payload=inventory([gpu(UUIDS[0])]))
    assert (node.gpus.get().health, node.gpus.get().health_note) == ("quarantined", "memory not freed")


def test_an_address_that_is_not_said_stays_as_it_was(node: Node) -> None:
    services.record_inventory(node=node, payload=inventory(ssh_host="", ssh_port=None, ssh_host_key=None))
    before = (node.ssh_host, node.ssh_port, node.ssh_host_key)
    node.refresh_from_db()
    assert (node.ssh_host, node.ssh_port, node.ssh_host_key) == before


def test_the_number_of_queries_of_a_heartbeat_does_not_grow_with_the_gpus(
    node: Node, django_assert_max_num_queries: Any
) -> None:
    # case I01
    services.record_inventory(node=node, payload=inventory([gpu(uuid) for uuid in UUIDS]))
    said = [{"uuid": uuid, "healthy": True, "fault": ""} for uuid in UUIDS]
    with django_assert_max_num_queries(2):
        services.record_heartbeat(node=node, payload=heartbeat(gpus=said))


def test_a_node_whose_card_was_refused_is_asked_to_list_it_again_after_a_while() -> None:  # case G02
    old, new = make.make_node(gpus=1), make.make_node(gpus=0)
    uuid = Gpu.objects.get(node=old).uuid
    services.record_inventory(node=new, payload=inventory([gpu(uuid)]))
    new.refresh_from_db()
    assert new.notices
    now = timezone.now()
    assert not services.wants_inventory(node=new, now=now)
    assert services.wants_inventory(node=new, now=now + services.INVENTORY_AGAIN * 2)
    assert not services.wants_inventory(node=old, now=now + services.INVENTORY_AGAIN * 2)
