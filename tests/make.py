"""Typed makers of rows for tests: each gives a valid object with sensible values, which keyword arguments override.

They write rows directly, so that a test of one part does not depend on the services of another. A maker ends up with
what the services would have left: a lease holds slots, a hold and events; a balance is backed by a ledger entry.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import secrets
import struct
import uuid
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from allauth.account.models import EmailAddress
from django.conf import settings
from django.db.models import F
from django.utils import timezone

from billing.models import Account, Hold, LedgerEntry, Plan, PlanPrice, PriceVersion, Sku, TopUp
from nodes.models import Gpu, GpuSlot, Node
from portal import ids, keys, tokens
from portal.models import ApiToken, Membership, SshKey, Tenant, User
from portal.services import ensure_personal_tenant
from rental.models import Allocation, Lease, LeaseEvent, UsageSegment
from rental.states import LIVE, EndReason, State

if TYPE_CHECKING:
    from datetime import datetime

PASSWORD = "correct horse battery 9"
H100 = "NVIDIA H100 80GB HBM3"
H100_BYTES = 85_520_809_984
H100_GB = 80
TICKS_PER_MICRO = 3600
_count = itertools.count(1)


# --- accounts ---------------------------------------------------------------------------------------------------------


def make_user(email: str | None = None, *, operator: bool = False, verified: bool = True, **values: Any) -> User:
    """A user with ``PASSWORD``, an address row and a personal tenant; ``operator`` gives every right in the admin."""
    rights = {"is_staff": True, "is_superuser": True} if operator else {}
    user = User.objects.create_user(email or f"user{next(_count)}@example.test", PASSWORD, **{**rights, **values})
    EmailAddress.objects.create(user=user, email=user.email, primary=True, verified=verified)
    ensure_personal_tenant(user)
    return user


def tenant_of(user: User) -> Tenant:
    """The user's personal tenant."""
    return ensure_personal_tenant(user)


def make_tenant(name: str = "Northwind", *, members: dict[User, str] | None = None, **values: Any) -> Tenant:
    """An organisation; ``members`` maps users to roles."""
    tenant = Tenant.objects.create(name=name, kind=Tenant.Kind.ORGANISATION, **values)
    for user, role in (members or {}).items():
        Membership.objects.create(tenant=tenant, user=user, role=role)
    return tenant


def ed25519_line(comment: str = "") -> str:
    """A well-formed Ed25519 public key line nobody has the private half of."""
    kind = b"ssh-ed25519"
    blob = struct.pack(">I", len(kind)) + kind + struct.pack(">I", 32) + secrets.token_bytes(32)
    line = f"ssh-ed25519 {base64.b64encode(blob).decode()}"
    return f"{line} {comment}" if comment else line


def make_key(user: User, *, line: str | None = None, name: str | None = None) -> SshKey:
    """An SSH key of the user."""
    read = keys.read_public_key(line or ed25519_line())
    return SshKey.objects.create(
        user=user,
        name=name or f"laptop {next(_count)}",
        key_type=read.key_type,
        line=read.line,
        fingerprint=read.fingerprint,
    )


def make_token(
    user: User, *, tenant: Tenant | None = None, scopes: list[str] | None = None, **values: Any
) -> tuple[ApiToken, str]:
    """A token (every scope by default) and its secret."""
    secret = tokens.new_secret()
    token = ApiToken.objects.create(
        user=user,
        tenant=tenant or tenant_of(user),
        prefix=tokens.prefix_of(secret),
        digest=tokens.digest(secret),
        scopes=sorted(tokens.SCOPES) if scopes is None else scopes,
        **{"name": f"token {next(_count)}", **values},
    )
    return token, secret


# --- hardware ---------------------------------------------------------------------------------------------------------


def make_node(
    name: str | None = None, *, gpus: int = 4, gpu_model: str = H100, memory_bytes: int = H100_BYTES, **values: Any
) -> Node:
    """A node that sells: enrolled, heard a moment ago, preflight passed, with ``gpus`` free GPUs of one model."""
    now = timezone.now()
    facts: dict[str, Any] = {
        "name": name or f"node-{next(_count)}",
        "enrolled_at": now,
        "last_seen_at": now,
        "inventory_at": now,
        "preflight_at": now,
        "preflight_ok": True,
        "boot_id": secrets.token_hex(16),
        "agent_run": secrets.token_hex(16),
        "agent_version": "0.1.0",
        "machine_id": secrets.token_hex(16),
        "driver_version": "570.86.15",
        "cuda_version": "12.8",
        "cpu_cores": 64,
        "memory_bytes": 512 << 30,
        "disk_bytes": 4 << 40,
        "ssh_host": "127.0.0.1",
        "ssh_host_key": ed25519_line(),
    }
    node = Node.objects.create(**{**facts, **values})
    for index in range(gpus):
        make_gpu(node, index=index, model=gpu_model, memory_bytes=memory_bytes)
    return node


def make_node_secret(node: Node) -> str:
    """Gives the node a bearer token and returns it."""
    secret = f"lnt_{secrets.token_urlsafe(32)}"
    node.token_digest = hashlib.sha256(secret.encode()).hexdigest()
    node.save(update_fields=["token_digest"])
    return secret


def make_gpu(node: Node, *, index: int = 0, slots: int = 1, **values: Any) -> Gpu:
    """A healthy GPU with free slots."""
    facts: dict[str, Any] = {
        "uuid": f"GPU-{uuid.uuid4()}",
        "model": H100,
        "memory_bytes": H100_BYTES,
        "index": index,
        "pci_bus_id": f"00000000:{index + 1:02X}:00.0",
        "compute_capability": "9.0",
    }
    gpu = Gpu.objects.create(node=node, **{**facts, **values})
    GpuSlot.objects.bulk_create(GpuSlot(gpu=gpu, n=n) for n in range(slots))
    return gpu


# --- money ------------------------------------------------------------------------------------------------------------


def make_price(
    gpu_model: str = H100,
    *,
    on_demand: int = 2_490_000,
    spot: int = 498_000,
    reserved: int = 1_162_000,
    currency: str | None = None,
) -> PriceVersion:
    """The next price version of a GPU model; amounts are micros per GPU and hour."""
    sku, _ = Sku.objects.get_or_create(
        code=f"gpu:{gpu_model}", defaults={"gpu_model": gpu_model, "currency": currency or settings.CURRENCY}
    )
    version = PriceVersion.objects.create(
        sku=sku, number=sku.versions.count() + 1, base_micros_per_hour=on_demand * 2 // 3
    )
    amounts = {Plan.ON_DEMAND: (1500, on_demand), Plan.SPOT: (300, spot), Plan.RESERVED: (700, reserved)}
    for plan, (factor, micros) in amounts.items():
        PlanPrice.objects.create(version=version, plan=plan, factor_milli=factor, micros_per_hour=micros)
    return version


def make_balance(tenant: Tenant, micros: int = 100_000_000, *, currency: str | None = None) -> Account:
    """Money on a tenant's account, backed by a ledger entry."""
    account, _ = Account.objects.get_or_create(tenant=tenant, currency=currency or settings.CURRENCY)
    ticks = micros * TICKS_PER_MICRO
    LedgerEntry.objects.create(
        account=account, kind=LedgerEntry.Kind.TOP_UP, ticks=ticks, source=f"top_up:test-{next(_count)}"
    )
    Account.objects.filter(pk=account.pk).update(balance_ticks=F("balance_ticks") + ticks)
    account.refresh_from_db()
    return account


def make_top_up(tenant: Tenant, micros: int = 1_000_000, *, reference: str | None = None) -> TopUp:
    """A booked payment with its ledger entry."""
    account = make_balance(tenant, micros)
    return TopUp.objects.create(account=account, amount_micros=micros, reference=reference or f"payment {next(_count)}")


def make_hold(account: Account, lease_id: str, micros: int = 2_490_000) -> Hold:
    """Money set aside for a lease."""
    ticks = micros * TICKS_PER_MICRO
    Account.objects.filter(pk=account.pk).update(held_ticks=F("held_ticks") + ticks)
    return Hold.objects.create(account=account, lease_id=lease_id, ticks=ticks)


# --- leases -----------------------------------------------------------------------------------------------------------


def make_lease(
    tenant: Tenant,
    *,
    state: str = State.RUNNING,
    node: Node | None = None,
    gpu_count: int = 1,
    end_reason: str = EndReason.RELEASED,
    hold: bool = True,
    **values: Any,
) -> Lease:
    """A lease in any state, with the slots, hold, open segment and first events that belong to that state.

    A node with enough GPUs and a current price are made when none is there.
    """
    version = PriceVersion.objects.order_by("-number").first() or make_price()
    if node is None and state != State.REQUESTED:
        node = make_node(gpus=gpu_count)
    now = timezone.now()
    membership = tenant.memberships.order_by("pk").first()
    facts: dict[str, Any] = {
        "tenant": tenant,
        "created_by": membership.user if membership else None,
        "quote_id": ids.quote_id(),
        "state": state,
        "gpu_model": version.sku.gpu_model,
        "gpu_count": gpu_count,
        "gpu_memory_gb": H100_GB,
        "image": settings.DEFAULT_IMAGE,
        "max_duration_s": settings.MAX_DURATION_S,
        "inactive_timeout_s": 1800,
        "price_version": version,
        "currency": version.sku.currency,
        "price_micros_per_hour": version.plan_prices.get(plan=Plan.ON_DEMAND).micros_per_hour,
        "units": gpu_count,
        "node": node,
        "generation": 0 if state == State.REQUESTED else 1,
        "cpus_milli": 4000,
        "memory_bytes": 16 << 30,
        "workspace_bytes": settings.LEASE_WORKSPACE_BYTES,
    }
    lease = Lease.objects.create(**{**facts, **_moments(state, end_reason, now), **values})
    LeaseEvent.objects.create(lease=lease, from_state="", to_state=State.REQUESTED, code="requested")
    if state in LIVE and node is not None:
        _take_slots(lease, node)
    if state == State.RUNNING:
        UsageSegment.objects.create(
            lease=lease,
            start=lease.ready_at or now,
            units=lease.units,
            price_micros_per_hour=lease.price_micros_per_hour,
        )
    if hold and state not in {State.ENDED, State.INTERRUPTED}:
        account, _ = Account.objects.get_or_create(tenant=tenant, currency=lease.currency)
        make_hold(account, lease.pk, lease.total_micros_per_hour)
    return lease


def _moments(state: str, end_reason: str, now: datetime) -> dict[str, Any]:
    """The times a lease in this state has, five minutes after it became ready."""
    facts: dict[str, Any] = {"requested_at": now - timedelta(minutes=6)}
    if state in {State.RUNNING, State.STOPPING}:
        ready = now - timedelta(minutes=5)
        facts |= {
            "assigned_at": ready,
            "started_at": ready,
            "ready_at": ready,
            "confirmed_at": now,
            "deadline_at": ready + timedelta(seconds=settings.MAX_DURATION_S),
            "container_id": secrets.token_hex(32),
        }
    elif state in {State.ASSIGNED, State.STARTING}:
        facts["assigned_at"] = now - timedelta(minutes=6)
    if state == State.STOPPING:
        facts |= {"end_reason": end_reason, "stop_requested_at": now}
    if state == State.ENDED:
        facts |= {"end_reason": end_reason, "ended_at": now}
    return facts


def _take_slots(lease: Lease, node: Node) -> None:
    slots = list(
        GpuSlot.objects.filter(gpu__node=node, used_milli=0).order_by("gpu__pci_bus_id", "n")[: lease.gpu_count]
    )
    if len(slots) < lease.gpu_count:
        raise ValueError(f"{node.name} has {len(slots)} free GPUs, the lease wants {lease.gpu_count}")
    for slot in slots:
        Allocation.objects.create(lease=lease, generation=lease.generation, slot=slot)
    GpuSlot.objects.filter(pk__in=[slot.pk for slot in slots]).update(used_milli=1000)
