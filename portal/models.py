"""Accounts: who acts (User, ApiToken, SshKey), for whom (Tenant, Membership), and what they changed (AuditEvent)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib.auth.base_user import BaseUserManager
from django.contrib.auth.models import AbstractUser
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Lower
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal import ids
from portal.roles import ALLOWED, Act, Role

if TYPE_CHECKING:
    from datetime import datetime


class UserManager(BaseUserManager["User"]):
    """Creates users by e-mail address; there are no user names."""

    def create_user(self, email: str, password: str | None = None, **extra: Any) -> User:
        """A user with a hashed password; the address keeps its case for display and compares without it."""
        if not email:
            raise ValueError("An e-mail address is needed.")
        user = self.model(email=email, **extra)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_superuser(self, email: str, password: str | None = None, **extra: Any) -> User:
        """An operator with every right, for ``manage.py createsuperuser``."""
        return self.create_user(email, password, is_staff=True, is_superuser=True, **extra)

    def get_by_natural_key(self, username: str | None) -> User:
        """The user with this address, whatever its case."""
        return self.get(email__iexact=username)


class User(AbstractUser):
    """A person who signs in by e-mail address."""

    id = models.CharField(primary_key=True, max_length=32, default=ids.user_id, editable=False)
    username = None  # type: ignore[assignment]  # AbstractUser's field is removed: people sign in by e-mail
    email = models.EmailField(_("e-mail address"))
    language = models.CharField(
        _("language"), max_length=16, blank=True, help_text="of mails to this person; empty: the portal's own"
    )

    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []
    objects: ClassVar[UserManager] = UserManager()  # type: ignore[assignment]  # no user names, see UserManager

    class Meta:
        verbose_name = _("user")
        verbose_name_plural = _("users")
        constraints = [models.UniqueConstraint(Lower("email"), name="user_email_once_in_any_case")]

    def __str__(self) -> str:
        return self.email

    @property
    def lost_a_passkey(self) -> bool:
        """Was one ever taken away, by this person or by an operator? Only the audit log remembers."""
        removed = Q(action="user.second_factor_removed", data__type="webauthn")
        reset = Q(action="user.second_factor_reset", data__types__icontains="webauthn")
        about = AuditEvent.objects.filter(object_type="user", object_id=self.pk)
        return about.filter(removed | reset).exists()


class Tenant(models.Model):
    """Who rents and pays."""

    class Kind(models.TextChoices):
        PERSONAL = "personal", _("personal")
        ORGANISATION = "organisation", _("organisation")

    id = models.CharField(primary_key=True, max_length=32, default=ids.tenant_id, editable=False)
    name = models.CharField(_("name"), max_length=120)
    kind = models.CharField(_("kind"), max_length=16, choices=Kind.choices, default=Kind.PERSONAL)
    members = models.ManyToManyField(User, through="Membership", related_name="tenants")
    suspended_at = models.DateTimeField(_("suspended at"), null=True, blank=True)
    suspension_reason = models.CharField(
        _("reason of the suspension"), max_length=300, blank=True, help_text="its members read it"
    )
    standing_mail_due_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="since when a mail about its suspension is due"
    )
    deleted_at = models.DateTimeField(_("deleted at"), null=True, blank=True, editable=False, help_text="by an owner")
    created_at = models.DateTimeField(_("created at"), default=timezone.now, editable=False)

    class Meta:
        verbose_name = _("tenant")
        verbose_name_plural = _("tenants")
        constraints = [
            models.CheckConstraint(condition=Q(kind__in=["personal", "organisation"]), name="tenant_kind_is_known")
        ]

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    """A user in a tenant, with a role."""

    Role = Role

    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(_("role"), max_length=16, choices=Role.choices, default=Role.MEMBER)
    created_at = models.DateTimeField(_("created at"), default=timezone.now, editable=False)

    class Meta:
        verbose_name = _("membership")
        verbose_name_plural = _("memberships")
        constraints = [
            models.UniqueConstraint(fields=["tenant", "user"], name="membership_once_per_tenant"),
            models.CheckConstraint(
                condition=Q(role__in=["owner", "admin", "billing", "member", "viewer"]), name="membership_role_is_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.user_id} {self.role} {self.tenant_id}"


# What a role may do stands in portal/roles.py; these two are asked for in queries.
ROLES_THAT_LEASE = ALLOWED[Act.ORDER]
ROLES_THAT_PAY = ALLOWED[Act.TOP_UP]


class InvitationQuerySet(models.QuerySet["Invitation"]):
    """Named questions about invitations."""

    def waiting(self) -> InvitationQuerySet:
        """Neither answered nor withdrawn nor too old."""
        return self.filter(state=Invitation.State.OPEN, expires_at__gt=timezone.now())


class Invitation(models.Model):
    """A place in a tenant, offered by mail to an address. The link in the mail is signed, not stored."""

    class State(models.TextChoices):
        OPEN = "open", _("open")
        ACCEPTED = "accepted", _("accepted")
        DECLINED = "declined", _("declined")
        WITHDRAWN = "withdrawn", _("withdrawn")

    id = models.CharField(primary_key=True, max_length=32, default=ids.invitation_id, editable=False)
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="invitations")
    email = models.EmailField(_("e-mail address"))
    role = models.CharField(_("role"), max_length=16, choices=Role.choices, default=Role.MEMBER)
    invited_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    language = models.CharField(_("language"), max_length=16, blank=True, help_text="of the mail")
    round = models.PositiveIntegerField(default=1, help_text="a link that was sent again replaces the one before")
    mailed_round = models.PositiveIntegerField(default=0, editable=False, help_text="the last round that was mailed")
    state = models.CharField(_("state"), max_length=16, choices=State.choices, default=State.OPEN, editable=False)
    created_at = models.DateTimeField(_("created"), default=timezone.now, editable=False)
    expires_at = models.DateTimeField(_("expires"))
    closed_at = models.DateTimeField(_("answered"), null=True, blank=True, editable=False)

    objects = InvitationQuerySet.as_manager()

    class Meta:
        verbose_name = _("invitation")
        verbose_name_plural = _("invitations")
        ordering = ["created_at", "id"]
        constraints = [
            models.UniqueConstraint(
                "tenant", Lower("email"), condition=Q(state="open"), name="invitation_open_once_per_address"
            ),
            models.CheckConstraint(
                condition=Q(state__in=["open", "accepted", "declined", "withdrawn"]), name="invitation_state_is_known"
            ),
            models.CheckConstraint(
                condition=Q(role__in=["owner", "admin", "billing", "member", "viewer"]), name="invitation_role_is_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.email} {self.role} {self.tenant_id}"


class SshKeyQuerySet(models.QuerySet["SshKey"]):
    """Named questions about SSH keys."""

    def admitted_to(self, tenant_id: str) -> SshKeyQuerySet:
        """The keys that open a lease of this tenant now: those of active members who may lease."""
        return self.filter(
            user__is_active=True,
            user__memberships__tenant_id=tenant_id,
            user__memberships__role__in=ROLES_THAT_LEASE,
        ).distinct()


class SshKey(models.Model):
    """A public key of a user, stored as one canonical line."""

    id = models.CharField(primary_key=True, max_length=32, default=ids.ssh_key_id, editable=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="ssh_keys")
    name = models.CharField(_("name"), max_length=80)
    key_type = models.CharField(_("type"), max_length=64)
    line = models.TextField(_("public key"), help_text="type, base64; no comment, no options, no line end")
    fingerprint = models.CharField(_("fingerprint"), max_length=64, help_text="SHA256:… as ssh-keygen -lf prints it")
    created_at = models.DateTimeField(_("added"), default=timezone.now, editable=False)
    last_used_at = models.DateTimeField(_("last used"), null=True, blank=True, editable=False)

    objects = SshKeyQuerySet.as_manager()

    class Meta:
        verbose_name = _("SSH key")
        verbose_name_plural = _("SSH keys")
        ordering = ["created_at", "id"]
        constraints = [models.UniqueConstraint(fields=["user", "fingerprint"], name="ssh_key_once_per_user")]

    def __str__(self) -> str:
        return f"{self.name} {self.fingerprint}"


class ApiTokenQuerySet(models.QuerySet["ApiToken"]):
    """Named questions about tokens."""

    def usable(self, now: datetime | None = None) -> ApiTokenQuerySet:
        """Tokens that open the API now: not revoked, not expired, of an active user who is still a member."""
        return self.filter(
            Q(expires_at__isnull=True) | Q(expires_at__gt=now or timezone.now()),
            revoked_at__isnull=True,
            user__is_active=True,
            tenant__memberships__user=F("user"),
        )


class ApiToken(models.Model):
    """A secret for programs: acts as its user, inside one tenant, within its scopes. Only a digest is stored."""

    id = models.CharField(primary_key=True, max_length=32, default=ids.token_id, editable=False)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_tokens")
    tenant = models.ForeignKey(Tenant, on_delete=models.CASCADE, related_name="api_tokens")
    name = models.CharField(_("name"), max_length=80)
    prefix = models.CharField(_("prefix"), max_length=16, help_text="the first letters, to recognise it by")
    digest = models.CharField(max_length=64, unique=True, editable=False, help_text="SHA-256 of the secret, hex")
    scopes = models.JSONField(_("scopes"), default=list)
    expires_at = models.DateTimeField(_("expires"), null=True, blank=True)
    revoked_at = models.DateTimeField(_("revoked"), null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(_("last used"), null=True, blank=True, editable=False)
    last_used_ip = models.GenericIPAddressField(_("last used from"), null=True, blank=True, editable=False)
    expiry_told_at = models.DateTimeField(null=True, blank=True, editable=False, help_text="its end was announced")
    created_at = models.DateTimeField(_("created"), default=timezone.now, editable=False)

    objects = ApiTokenQuerySet.as_manager()

    class Meta:
        verbose_name = _("API token")
        verbose_name_plural = _("API tokens")
        ordering = ["-created_at", "id"]

    def __str__(self) -> str:
        return f"{self.name} {self.prefix}…"


class TokenPlace(models.Model):
    """A network a token was used from. Only a keyed digest is kept: enough to tell a new place from a known one."""

    token = models.ForeignKey(ApiToken, on_delete=models.CASCADE, related_name="places")
    digest = models.CharField(max_length=64, editable=False)
    first_used_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        verbose_name = _("place of a token")
        verbose_name_plural = _("places of tokens")
        constraints = [models.UniqueConstraint(fields=["token", "digest"], name="token_place_once")]

    def __str__(self) -> str:
        return f"{self.token_id} since {self.first_used_at:%Y-%m-%d %H:%M:%S}"


class OwedMail(models.Model):
    """A mail still to be sent, as it will be read. The row goes when it is sent (portal/owed_mails.py)."""

    address = models.EmailField(editable=False)
    subject = models.TextField(editable=False)
    text = models.TextField(editable=False)
    html = models.TextField(blank=True, editable=False)
    at = models.DateTimeField(default=timezone.now, editable=False)
    in_hand_at = models.DateTimeField(null=True, editable=False, help_text="a worker is sending it")

    class Meta:
        verbose_name = _("mail to be sent")
        verbose_name_plural = _("mails to be sent")

    def __str__(self) -> str:
        return f"mail {self.pk} since {self.at:%Y-%m-%d %H:%M:%S}"


class AuditEvent(models.Model):
    """Who changed what, when, from where. Written in the transaction of the change, never altered."""

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField(_("at"), default=timezone.now, editable=False, db_index=True)
    actor = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    actor_label = models.CharField(_("actor"), max_length=254, help_text="e-mail at the time, or the part of Lessor")
    token = models.ForeignKey(ApiToken, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    tenant = models.ForeignKey(Tenant, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    action = models.CharField(_("action"), max_length=64, help_text="for example lease.requested")
    object_type = models.CharField(_("object type"), max_length=32)
    object_id = models.CharField(_("object"), max_length=64)
    data = models.JSONField(_("details"), default=dict)
    ip = models.GenericIPAddressField(_("address"), null=True, blank=True)

    class Meta:
        verbose_name = _("audit event")
        verbose_name_plural = _("audit events")
        ordering = ["-id"]
        indexes = [models.Index(fields=["object_type", "object_id"], name="audit_by_object")]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S} {self.actor_label} {self.action} {self.object_id}"


class PortalPresence(models.Model):
    """One row: since when, and until when, this portal has been receiving without a break.

    Silence of a node counts only while the portal itself could have heard it (see docs/lease-lifecycle.md).
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    receiving_since = models.DateTimeField()
    seen_at = models.DateTimeField()

    class Meta:
        verbose_name = _("portal presence")
        constraints = [models.CheckConstraint(condition=Q(id=1), name="portal_presence_is_one_row")]

    def __str__(self) -> str:
        return f"receiving since {self.receiving_since:%Y-%m-%d %H:%M:%S}"
