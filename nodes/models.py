"""Hardware: nodes, their GPUs, and the slots that can be taken."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal import ids
from portal.models import User

if TYPE_CHECKING:
    from datetime import datetime


def board_gb(memory_bytes: int) -> int:
    """Marketing gigabytes: what a board is sold as, for example 80 for 85,520,809,984 bytes."""
    return round(memory_bytes / (1 << 30))


class NodeQuerySet(models.QuerySet["Node"]):
    """Named questions about nodes."""

    def alive(self) -> NodeQuerySet:
        """Enrolled and not revoked: may talk to us."""
        return self.filter(enrolled_at__isnull=False, revoked_at__isnull=True)

    def selling(self, now: datetime | None = None) -> NodeQuerySet:
        """Takes new leases now: alive, heard within 90 s, preflight passed, not draining."""
        return self.selling_since((now or timezone.now()) - timedelta(seconds=settings.QUIET_AFTER_S))

    def selling_since(self, heard: datetime) -> NodeQuerySet:
        """As selling(), by the moment since which a node must have been heard."""
        return self.alive().filter(last_seen_at__gte=heard, preflight_ok=True, draining_since__isnull=True)


class Node(models.Model):
    """A registered machine with a Docker engine and our agent."""

    id = models.CharField(primary_key=True, max_length=32, default=ids.node_id, editable=False)
    name = models.CharField(_("name"), max_length=63, help_text=_("lower case letters, digits and hyphens"))
    site = models.CharField(_("site"), max_length=63, blank=True)
    created_at = models.DateTimeField(_("created"), default=timezone.now, editable=False)
    enrolled_at = models.DateTimeField(_("enrolled"), null=True, blank=True, editable=False)
    revoked_at = models.DateTimeField(_("revoked"), null=True, blank=True, editable=False)
    draining_since = models.DateTimeField(_("draining since"), null=True, blank=True, editable=False)
    token_digest = models.CharField(max_length=64, null=True, unique=True, editable=False)
    broker_password_digest = models.CharField(
        max_length=64, blank=True, editable=False, help_text="SHA-256, for ACL SETUSER #…"
    )
    broker_note = models.CharField(
        _("broker"), max_length=200, blank=True, editable=False, help_text="why it has no broker user"
    )

    # Heard from the node. Liveness is last_seen_at, our own clock at receipt; the node's clock is shown, never used.
    last_seen_at = models.DateTimeField(_("last seen"), null=True, blank=True, editable=False)
    boot_id = models.CharField(_("boot id"), max_length=64, blank=True, editable=False)
    agent_run = models.CharField(max_length=64, blank=True, editable=False)
    agent_version = models.CharField(_("agent version"), max_length=32, blank=True, editable=False)
    clock_skew_s = models.IntegerField(_("clock skew, s"), null=True, blank=True, editable=False)
    machine_id = models.CharField(_("machine id"), max_length=64, blank=True, editable=False)
    simulated = models.BooleanField(_("GPUs are simulated"), default=False, editable=False)
    machine = models.JSONField(_("machine"), default=dict, editable=False)
    capabilities = models.JSONField(_("capabilities"), default=dict, editable=False)
    driver_version = models.CharField(_("driver"), max_length=32, blank=True, editable=False)
    cuda_version = models.CharField(_("CUDA"), max_length=16, blank=True, editable=False)
    cpu_cores = models.PositiveIntegerField(_("CPU cores"), default=0, editable=False)
    memory_bytes = models.BigIntegerField(_("memory, bytes"), default=0, editable=False)
    disk_bytes = models.BigIntegerField(_("disk, bytes"), default=0, editable=False)
    inventory_at = models.DateTimeField(_("inventory"), null=True, blank=True, editable=False)
    ssh_host = models.CharField(_("SSH host"), max_length=253, blank=True)
    ssh_port = models.PositiveIntegerField(_("SSH port"), default=2222)
    ssh_host_key = models.TextField(_("SSH host key"), blank=True, editable=False)
    preflight_at = models.DateTimeField(_("preflight"), null=True, blank=True, editable=False)
    preflight_ok = models.BooleanField(_("preflight passed"), default=False, editable=False)
    preflight_checks = models.JSONField(_("preflight checks"), default=list, editable=False)
    notices = models.JSONField(
        _("notices"), default=list, editable=False, help_text="sentences for the operator, rewritten by each inventory"
    )

    objects = NodeQuerySet.as_manager()

    class Meta:
        verbose_name = _("node")
        verbose_name_plural = _("nodes")
        ordering = ["name", "id"]
        constraints = [
            # A revoked node keeps its row and history; its name may be given to a new row, which inherits nothing.
            models.UniqueConstraint(
                fields=["name"], condition=Q(revoked_at__isnull=True), name="node_name_once_in_use"
            ),
            models.CheckConstraint(condition=Q(ssh_port__gte=1, ssh_port__lte=65535), name="node_ssh_port_in_range"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def queue(self) -> str:
        """The name of its wake-up queue and of its user at the node broker."""
        return f"node.{self.id}"

    def status(self, now: datetime | None = None) -> str:
        """One word for people: revoked, not_enrolled, silent, draining, not_ready, ready."""
        heard = (now or timezone.now()) - timedelta(seconds=settings.QUIET_AFTER_S)
        if self.revoked_at:
            return "revoked"
        if not self.enrolled_at:
            return "not_enrolled"
        if not self.last_seen_at or self.last_seen_at < heard:
            return "silent"
        if self.draining_since:
            return "draining"
        return "ready" if self.preflight_ok else "not_ready"


class EnrolmentToken(models.Model):
    """A secret that turns one machine into this node, once."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="enrolment_tokens")
    digest = models.CharField(max_length=64, unique=True, help_text="SHA-256 of the secret, hex")
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("enrolment token")
        verbose_name_plural = _("enrolment tokens")

    def __str__(self) -> str:
        return f"for {self.node_id}"


class GpuQuerySet(models.QuerySet["Gpu"]):
    """Named questions about GPUs."""

    def present(self) -> GpuQuerySet:
        """Reported by their node's last inventory."""
        return self.filter(retired_at__isnull=True)

    def well(self) -> GpuQuerySet:
        """Present, healthy, not quarantined, not cut into slices."""
        return self.present().filter(health=Gpu.Health.HEALTHY, mig_mode=False)

    def leasable(self, now: datetime | None = None) -> GpuQuerySet:
        """May be leased if free: well, on a node that sells."""
        return self.well().filter(node__in=Node.objects.selling(now).values("pk"))


class Gpu(models.Model):
    """A physical GPU, known by the UUID its driver gives. The index is shown, never used."""

    class Health(models.TextChoices):
        HEALTHY = "healthy", _("healthy")
        LOST = "lost", _("lost")
        QUARANTINED = "quarantined", _("quarantined")

    id = models.BigAutoField(primary_key=True)
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="gpus")
    uuid = models.CharField("UUID", max_length=64)
    model = models.CharField(_("model"), max_length=96, db_index=True, help_text=_("name as NVML gives it"))
    memory_bytes = models.BigIntegerField(_("memory, bytes"))
    index = models.PositiveSmallIntegerField(_("index"), default=0)
    pci_bus_id = models.CharField(_("PCI bus"), max_length=32, blank=True)
    serial = models.CharField(_("serial"), max_length=64, blank=True)
    compute_capability = models.CharField(_("compute capability"), max_length=8, blank=True)
    mig_mode = models.BooleanField(_("MIG on"), default=False)
    health = models.CharField(_("health"), max_length=16, choices=Health.choices, default=Health.HEALTHY)
    health_note = models.CharField(_("why"), max_length=500, blank=True)
    health_at = models.DateTimeField(_("health since"), default=timezone.now)
    first_seen_at = models.DateTimeField(_("first seen"), default=timezone.now, editable=False)
    retired_at = models.DateTimeField(_("retired"), null=True, blank=True)

    objects = GpuQuerySet.as_manager()

    class Meta:
        verbose_name = "GPU"
        verbose_name_plural = _("GPUs")
        ordering = ["node", "pci_bus_id", "uuid"]
        constraints = [
            # Two machines that claim one card: the second is refused instead of selling it twice (case G02).
            models.UniqueConstraint(
                fields=["uuid"], condition=Q(retired_at__isnull=True), name="gpu_uuid_once_present"
            ),
            models.CheckConstraint(
                condition=Q(health__in=["healthy", "lost", "quarantined"]), name="gpu_health_is_known"
            ),
            models.CheckConstraint(condition=Q(memory_bytes__gt=0), name="gpu_has_memory"),
        ]

    def __str__(self) -> str:
        return f"{self.model} {self.uuid}"

    @property
    def memory_gb(self) -> int:
        """What the board is sold as."""
        return board_gb(self.memory_bytes)


class GpuSlot(models.Model):
    """One memory placement unit of a GPU (one without MIG). ``used_milli`` changes only by conditional UPDATE."""

    id = models.BigAutoField(primary_key=True)
    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="slots")
    n = models.PositiveSmallIntegerField()
    used_milli = models.PositiveSmallIntegerField(default=0)

    class Meta:
        verbose_name = _("GPU slot")
        verbose_name_plural = _("GPU slots")
        ordering = ["gpu", "n"]
        constraints = [
            models.UniqueConstraint(fields=["gpu", "n"], name="gpu_slot_once"),
            models.CheckConstraint(
                condition=Q(used_milli__gte=0, used_milli__lte=1000), name="gpu_slot_within_capacity"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.gpu_id}/{self.n} {self.used_milli}"


class SshEvent(models.Model):
    """Something that a node's SSH gateway saw. Written once, deleted when it is old (nodes/ssh_events.py)."""

    class Kind(models.TextChoices):
        LOGIN = "login", _("logged in")
        LOGIN_REFUSED = "login_refused", _("login refused")
        SESSION_START = "session_start", _("session began")
        SESSION_END = "session_end", _("session ended")
        FORWARD = "forward", _("port forwarded")

    id = models.BigAutoField(primary_key=True)
    event_id = models.UUIDField(_("id"), editable=False, help_text="as the gateway gave it")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="ssh_events")
    # No foreign key: a node names leases that may be none, and hardware does not know who leases it.
    lease_ref = models.CharField(_("lease"), max_length=43)
    kind = models.CharField(_("what"), max_length=16, choices=Kind.choices)
    at = models.DateTimeField(_("when"), help_text="when we heard of it, less its age there")
    peer = models.CharField(_("from"), max_length=64, blank=True)
    key = models.CharField(_("key"), max_length=80, blank=True, help_text="fingerprint, SHA256:…")
    session = models.CharField(_("session"), max_length=64, blank=True)
    detail = models.CharField(_("detail"), max_length=200, blank=True)
    bytes_in = models.BigIntegerField(_("bytes in"), default=0)
    bytes_out = models.BigIntegerField(_("bytes out"), default=0)

    class Meta:
        verbose_name = _("SSH event")
        verbose_name_plural = _("SSH events")
        ordering = ["-at", "-id"]
        constraints = [models.UniqueConstraint(fields=["node", "event_id"], name="ssh_event_once")]
        indexes = [
            models.Index(fields=["lease_ref", "-at"], name="ssh_event_of_lease"),
            models.Index(fields=["at"], name="ssh_event_by_age"),
        ]

    def __str__(self) -> str:
        return f"{self.lease_ref} {self.kind}"
