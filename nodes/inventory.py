"""What a node's reports do to its GPUs: rows and slots, health, claims on one card by two machines, quarantine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.db import IntegrityError, transaction
from django.db.models import Sum
from django.utils import timezone

from nodes import payloads, signals
from nodes.models import Gpu, GpuSlot, Node
from portal.actor import Actor
from portal.errors import IllegalTransition
from portal.services import audit

if TYPE_CHECKING:
    from collections.abc import Iterable

Health = Gpu.Health
NOT_LISTED: Final = "not in the node's last inventory"
FACTS: Final = ("model", "memory_bytes", "index", "pci_bus_id", "serial", "compute_capability", "mig_mode")


@transaction.atomic
def record_inventory(*, node: Node, payload: Any) -> None:
    """Take over what the machine is and which GPUs it has. A GPU that is missing is lost until it is listed again."""
    facts = payloads.read(payloads.InventoryIn, payload)
    locked = Node.objects.select_for_update().get(pk=node.pk)  # two inventories of one node, one after the other
    reported = {gpu["uuid"]: gpu for gpu in facts["gpus"]}
    known = {gpu.uuid: gpu for gpu in Gpu.objects.present().filter(node=locked)}
    admitted = [_admit(locked, reported[uuid]) for uuid in sorted(reported.keys() - known.keys())]
    for uuid, gpu in sorted(known.items()):
        if uuid in reported:
            _update_facts(gpu, reported[uuid])
        else:
            set_health(gpu, to=Health.LOST, note=NOT_LISTED, unless=(Health.LOST, Health.QUARANTINED))
    _update_node(locked, facts, [refusal for refusal in admitted if refusal])


def record_health(*, node: Node, gpus: Iterable[dict[str, Any]]) -> None:
    """What a heartbeat says about GPUs we know. Others wait for the inventory that brings them."""
    said = {gpu["uuid"]: gpu for gpu in gpus}
    if said:
        for gpu in Gpu.objects.present().filter(node=node, uuid__in=said).order_by("pk"):
            _follow(gpu, healthy=said[gpu.uuid]["healthy"], fault=said[gpu.uuid]["fault"])


@transaction.atomic
def quarantine(*, uuids: Iterable[str], node: Node, note: str, actor: Actor | None = None) -> int:
    """Take GPUs of this node out of service until an operator returns them. Returns how many were changed."""
    changed = 0
    for gpu in Gpu.objects.present().filter(node=node, uuid__in=list(uuids)).order_by("pk"):
        if set_health(gpu, to=Health.QUARANTINED, note=note, unless=(Health.QUARANTINED,)):
            changed += 1
            by = actor or Actor.system(f"node {node.name}")
            audit(actor=by, action="gpu.quarantined", obj=gpu, data={"note": note[:500]})
    return changed


@transaction.atomic
def return_gpu(*, gpu: Gpu, actor: Actor, note: str = "") -> None:
    """Put a quarantined GPU back into service. A lost one returns by itself when its node reports it."""
    if not set_health(gpu, to=Health.HEALTHY, note="", unless=(Health.HEALTHY, Health.LOST)):
        raise IllegalTransition(f"{gpu.uuid} is not quarantined.")
    audit(actor=actor, action="gpu.returned", obj=gpu, data={"note": note[:500]})


def set_health(gpu: Gpu, *, to: str, note: str, unless: tuple[str, ...]) -> bool:
    """Change a GPU's health by conditional UPDATE; False where it is in one of ``unless`` or retired by now."""
    row = Gpu.objects.present().filter(pk=gpu.pk)
    was_healthy = row.filter(health=Health.HEALTHY).exists()
    changed = row.exclude(health__in=unless).update(health=to, health_note=note[:500], health_at=timezone.now())
    if not changed:
        return False
    gpu.refresh_from_db(fields=["health", "health_note", "health_at"])
    if was_healthy and to != Health.HEALTHY:
        signals.send_after_commit(signals.gpu_lost, gpu=gpu)
    return True


def retire_free_gpus(*, node: Node) -> int:
    """Retire the GPUs of a revoked node that no lease holds. Rows are never deleted."""
    held = GpuSlot.objects.filter(gpu__node=node, used_milli__gt=0).values("gpu")
    return Gpu.objects.present().filter(node=node).exclude(pk__in=held).update(retired_at=timezone.now())


def _admit(node: Node, said: dict[str, Any]) -> str:
    """Make the row and slots of a new GPU. Returns a sentence for the operator where another node holds this card."""
    carried = _take_over(node, said["uuid"])
    if isinstance(carried, str):
        return carried
    try:
        with transaction.atomic():
            gpu = Gpu.objects.create(node=node, uuid=said["uuid"], **_facts(said), **carried)
            # One slot without MIG. A board with MIG on is not leasable, so one slot says nothing wrong about it.
            GpuSlot.objects.create(gpu=gpu, n=0)
    except IntegrityError:  # the other machine was faster by a moment
        return f"GPU {said['uuid']} is reported by another node as well, so it is not taken in here."
    _follow(gpu, healthy=said["healthy"], fault=said["fault"])
    return ""


def _take_over(node: Node, uuid: str) -> dict[str, Any] | str:
    """Values the new row starts with, or the reason why the card stays with the node that has it (case G02).

    A card may move when its old node is revoked or does not list it any more, and no lease holds it there.
    """
    old = Gpu.objects.present().select_for_update(of=("self",)).select_related("node").filter(uuid=uuid).first()
    if old is None or old.node_id == node.pk:
        return {}
    if old.node.revoked_at is None and old.health != Health.LOST:
        return f"GPU {uuid} is present on node {old.node.name}, so it is not taken in here: one card, one node."
    if old.slots.aggregate(total=Sum("used_milli"))["total"]:
        return f"GPU {uuid} is still held by a lease on node {old.node.name}, so it is not taken in here yet."
    Gpu.objects.filter(pk=old.pk).update(retired_at=timezone.now())
    if old.health == Health.QUARANTINED:  # moving a card into another machine does not clean it
        return {"health": Health.QUARANTINED, "health_note": old.health_note, "health_at": old.health_at}
    return {}


def _update_facts(gpu: Gpu, said: dict[str, Any]) -> None:
    facts = _facts(said)
    if changed := [name for name in FACTS if getattr(gpu, name) != facts[name]]:
        for name in changed:
            setattr(gpu, name, facts[name])
        gpu.save(update_fields=changed)
    _follow(gpu, healthy=said["healthy"], fault=said["fault"])


def _follow(gpu: Gpu, *, healthy: bool, fault: str) -> None:
    """The node's word on health; quarantine is only lifted by an operator."""
    if healthy and gpu.health == Health.LOST:
        set_health(gpu, to=Health.HEALTHY, note="", unless=(Health.HEALTHY, Health.QUARANTINED))
    elif not healthy and gpu.health == Health.HEALTHY:
        set_health(gpu, to=Health.LOST, note=fault or "reported as faulty", unless=(Health.LOST, Health.QUARANTINED))


def _facts(said: dict[str, Any]) -> dict[str, Any]:
    return {"model": said["name"], **{name: said[name] for name in FACTS if name != "model"}}


def _update_node(node: Node, facts: dict[str, Any], notices: list[str]) -> None:
    machine = facts["machine"]
    values = {
        "inventory_at": timezone.now(),
        "last_seen_at": timezone.now(),
        "machine": dict(machine),
        "capabilities": dict(facts["capabilities"]),
        "notices": notices,
        **{name: machine[name] for name in ("cpu_cores", "memory_bytes", "disk_bytes")},
        **{name: facts[name] for name in ("boot_id", "agent_version", "simulated", "driver_version", "cuda_version")},
        # Not said = as it was: the operator's entry, or the address the node enrolled from.
        **{name: facts[name] for name in ("ssh_host", "ssh_port", "ssh_host_key") if facts[name]},
    }
    for name, value in values.items():
        setattr(node, name, value)
    node.save(update_fields=list(values))
