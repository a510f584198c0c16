"""Verbs on nodes: add, enrol, hear from, drain, revoke. What reports do to GPUs is in nodes/inventory.py."""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from nodes import broker, credentials, payloads, signals
from nodes.inventory import quarantine, record_health, record_inventory, retire_free_gpus, return_gpu
from nodes.models import EnrolmentToken, Node
from portal.actor import Actor
from portal.errors import DomainError, IllegalTransition, InvalidInput
from portal.services import audit

__all__ = [
    "add_node",
    "drain",
    "enrol",
    "enrol_command",
    "new_enrolment_token",
    "quarantine",
    "record_heartbeat",
    "record_inventory",
    "record_preflight",
    "return_gpu",
    "revoke",
    "undrain",
]

NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
NAME_FORM: Final = "must be 1 to 63 lower-case letters, digits and hyphens, no hyphen at either end, like ams-gpu-02"
AGENT_SSH_PORT: Final = 2222  # what the agent assumes when it is not told
INVENTORY_AGAIN: Final = timedelta(seconds=30)  # between two lists that the portal asks for
# Nothing heard from an earlier machine counts for the one that enrols now.
FORGOTTEN: Final[dict[str, Any]] = {
    "last_seen_at": None,
    "inventory_at": None,
    "preflight_at": None,
    "preflight_ok": False,
    "preflight_checks": [],
    "clock_skew_s": None,
    "agent_run": "",
    "notices": [],
}
MAX_SITE: Final = 63
MAX_SKEW_S: Final = 2_000_000_000  # fits the column; a clock this far off is just "wrong"


class EnrolmentTokenInvalid(DomainError):  # domain errors are named by what is wrong
    """Unknown, used or expired: a stranger with a guessed token learns nothing."""

    status = 401
    code = "enrolment_token_invalid"


@transaction.atomic
def add_node(
    *, name: str, site: str = "", ssh_host: str = "", ssh_port: int | None = None, actor: Actor
) -> tuple[Node, str]:
    """A row for a machine to come, and the secret that makes the machine it. InvalidInput names a wrong field."""
    check_name(name)
    if ssh_host and not payloads.is_address(ssh_host):
        raise InvalidInput.field("ssh_host", "must be a host name or an IP address")
    if len(site) > MAX_SITE:
        raise InvalidInput.field("site", f"must be at most {MAX_SITE} characters")
    port = settings.SSH_PORT if ssh_port is None else ssh_port
    if not 1 <= port <= 65_535:  # noqa: PLR2004  # what TCP has
        raise InvalidInput.field("ssh_port", "must be 1 to 65535")
    try:
        with transaction.atomic():
            node = Node.objects.create(name=name, site=site, ssh_host=ssh_host, ssh_port=port)
    except IntegrityError as error:
        raise InvalidInput.field("name", f"{name} is in use by another node") from error
    audit(actor=actor, action="node.added", obj=node, data={"name": name, "site": site})
    return node, new_enrolment_token(node=node, actor=actor)


def check_name(name: str) -> None:
    """Names go into host names, labels and file names: anything but the plain form is refused (case G02)."""
    if not NAME.fullmatch(name):
        raise InvalidInput.field("name", NAME_FORM)


@transaction.atomic
def new_enrolment_token(*, node: Node, actor: Actor) -> str:
    """A fresh secret for this row; earlier unused ones stop working. A revoked node gets none: add a new one."""
    _lock(node)  # of two operators at once, the later command is the one that works
    now = timezone.now()
    EnrolmentToken.objects.filter(node=node, used_at__isnull=True, expires_at__gt=now).update(expires_at=now)
    secret = credentials.new_enrolment_secret()
    EnrolmentToken.objects.create(
        node=node,
        digest=credentials.digest(secret),
        created_by=actor.user,
        expires_at=now + timedelta(hours=settings.ENROLMENT_HOURS),
    )
    audit(actor=actor, action="node.enrolment_token_made", obj=node)
    return secret


def enrol_command(node: Node, token: str) -> str:
    """The one line an operator pastes on the machine, in a checkout of Lessor or where its agent is installed."""
    words = ["sudo", "python3", "-m", "nodes.agent", "enrol", "--portal", settings.PORTAL_URL, "--token", token]
    if node.ssh_host and not node.enrolled_at:
        words += ["--ssh-host", node.ssh_host]
    if node.ssh_port != AGENT_SSH_PORT:
        words += ["--ssh-port", str(node.ssh_port)]
    return shlex.join(words)


def enrol(*, payload: Any, peer_ip: str | None) -> dict[str, Any]:
    """Make the machine that shows a valid token this node; the answer is the body of ``POST enrol``.

    The secrets in it exist nowhere else. A row enrolled before gets new ones, and the old machine is locked out.
    """
    facts = payloads.read(payloads.EnrolIn, payload)
    token, password = credentials.new_node_secret(), credentials.new_broker_password()
    node = _take_in(facts, token, password, peer_ip)
    usable = broker.assert_user(node)  # after the commit: no network while rows are locked
    _change(node, broker_note="" if usable else _why_no_broker())
    return {
        "node_id": node.pk,
        "node_name": node.name,
        "node_token": token,
        "broker_url": broker.url_for(node, password) if usable else None,
        "queue": node.queue,
        "heartbeat_s": settings.HEARTBEAT_S,
        "pull_s": settings.PULL_S,
        "silence_s": settings.SILENCE_S,
        "server_time": timezone.now().isoformat(),
    }


@transaction.atomic
def _take_in(facts: dict[str, Any], token: str, password: str, peer_ip: str | None) -> Node:
    node = _use_token(facts["enrolment_token"])
    again = node.enrolled_at is not None
    _change(
        node,
        **FORGOTTEN,
        token_digest=credentials.digest(token),
        broker_password_digest=credentials.digest(password),
        enrolled_at=timezone.now(),
        agent_version=facts["agent_version"],
        machine_id=facts["machine_id"],
        boot_id=facts["boot_id"],
        ssh_host=facts["ssh_host"] or node.ssh_host or peer_ip or "",
        ssh_port=facts["ssh_port"] or node.ssh_port,
        ssh_host_key=facts["ssh_host_key"],
    )
    actor = Actor(label=f"node {node.name}", ip=peer_ip)
    audit(actor=actor, action="node.enrolled", obj=node, data={"hostname": facts["hostname"], "again": again})
    return node


def record_heartbeat(*, node: Node, payload: Any) -> None:
    """Note that the node lives, by our clock (case B07), and how its GPUs are. Leases are rental's to read."""
    facts = payloads.read(payloads.HeartbeatIn, payload)
    now = timezone.now()
    Node.objects.filter(pk=node.pk).update(
        last_seen_at=now, boot_id=facts["boot_id"], agent_run=facts["agent_run"], clock_skew_s=skew(facts["clock"], now)
    )
    record_health(node=node, gpus=facts["gpus"])


def wants_inventory(*, node: Node, now: datetime) -> bool:
    """Should the node list its GPUs again? A card that was refused, held by a lease elsewhere, may be free by now."""
    return bool(node.notices) and (node.inventory_at is None or now - node.inventory_at > INVENTORY_AGAIN)


def record_preflight(*, node: Node, payload: Any) -> None:
    """Note whether a container with a GPU works there. It counts as passed only when every check did."""
    facts = payloads.read(payloads.PreflightIn, payload)
    checks = [dict(check) for check in facts["checks"]]
    passed = facts["ok"] and bool(checks) and all(check["ok"] for check in checks)
    _change(node, preflight_at=timezone.now(), preflight_ok=passed, preflight_checks=checks)


@transaction.atomic
def drain(*, node: Node, actor: Actor) -> None:
    """No new leases from now on; running ones go on to their end. Draining twice is draining once."""
    # The row lock orders this against an order that locks the same row while it takes capacity.
    locked = _lock(node)
    if locked.draining_since is None:
        _change(locked, draining_since=timezone.now())
        audit(actor=actor, action="node.drained", obj=locked)


@transaction.atomic
def undrain(*, node: Node, actor: Actor) -> None:
    """Sell again. GPUs of running leases stay taken: draining never touched them."""
    locked = _lock(node)
    if locked.draining_since is not None:
        _change(locked, draining_since=None)
        audit(actor=actor, action="node.undrained", obj=locked)


@transaction.atomic
def revoke(*, node: Node, actor: Actor) -> None:
    """Void the node's token and broker user for good. The row, its GPUs and history stay; free GPUs are retired.

    The agent keeps what runs and ends it by the silence rule; GPUs under a lease come free only with their lease.
    """
    locked = Node.objects.select_for_update().get(pk=node.pk)
    if locked.revoked_at is not None:
        return
    _change(locked, revoked_at=timezone.now(), broker_password_digest="", preflight_ok=False)
    EnrolmentToken.objects.filter(node=locked, used_at__isnull=True).update(expires_at=timezone.now())
    retire_free_gpus(node=locked)
    audit(actor=actor, action="node.revoked", obj=locked)
    signals.send_after_commit(signals.node_revoked, node=locked)
    transaction.on_commit(lambda: broker.remove_user(locked))


def skew(clock: str, now: datetime) -> int | None:
    """How far a node's clock is ahead of ours, s; None where it is not a time. Shown to people and used for nothing."""
    try:
        theirs = datetime.fromisoformat(clock)
    except ValueError:
        return None
    theirs = theirs if theirs.tzinfo else theirs.replace(tzinfo=UTC)
    return max(-MAX_SKEW_S, min(MAX_SKEW_S, int((theirs - now).total_seconds())))


def _use_token(secret: str) -> Node:
    """The node a token stands for, the token being used up; of two machines at once one gets it."""
    now = timezone.now()
    tokens = EnrolmentToken.objects.filter(digest=credentials.digest(secret))
    if tokens.filter(used_at__isnull=True, expires_at__gt=now).update(used_at=now):
        node = Node.objects.select_for_update().filter(enrolment_tokens__in=tokens, revoked_at__isnull=True).first()
        if node is not None:
            return node
    raise EnrolmentTokenInvalid("The enrolment token is unknown, used or expired. Ask the operator for a new command.")


def _lock(node: Node) -> Node:
    locked = Node.objects.select_for_update().get(pk=node.pk)
    if locked.revoked_at is not None:
        raise IllegalTransition(f"{locked.name} is revoked. Add a new node for this machine.", code="node_revoked")
    return locked


def _change(node: Node, **values: Any) -> None:
    for name, value in values.items():
        setattr(node, name, value)
    node.save(update_fields=list(values))


def _why_no_broker() -> str:
    return broker.NO_ACL_RIGHTS if settings.NODE_BROKER_URL else broker.NO_BROKER
