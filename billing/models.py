"""Money: what things cost (Sku, PriceVersion, PlanPrice), what happened (LedgerEntry), what is set aside (Hold).

Amounts are integer ticks: 1 tick = 1 µ of the currency * 1 s / 1 h, so 3600 ticks are one µ (billing/money.py).
The ledger is append-only; triggers on both databases refuse UPDATE and DELETE.
"""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal import ids
from portal.models import Tenant, User


class Plan(models.TextChoices):
    """How time is bought."""

    ON_DEMAND = "on_demand", _("on demand")
    RESERVED = "reserved", _("reserved")
    SPOT = "spot", _("spot")


class Sku(models.Model):
    """Something with a price: a unit of a thing."""

    class Unit(models.TextChoices):
        GPU = "gpu", "GPU"

    id = models.BigAutoField(primary_key=True)
    code = models.CharField(_("code"), max_length=128, help_text="gpu:<model as NVML names it>")
    unit = models.CharField(_("unit"), max_length=16, choices=Unit.choices, default=Unit.GPU)
    gpu_model = models.CharField(_("GPU model"), max_length=96, blank=True, db_index=True)
    currency = models.CharField(_("currency"), max_length=3)
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        verbose_name = "SKU"
        verbose_name_plural = _("SKUs")
        ordering = ["code"]
        constraints = [
            models.UniqueConstraint(fields=["code", "currency"], name="sku_once_per_currency"),
            models.CheckConstraint(condition=Q(unit__in=["gpu"]), name="sku_unit_is_known"),
        ]

    def __str__(self) -> str:
        return self.code


class PriceVersion(models.Model):
    """A price of a SKU from a moment on. Never altered: a new price is a new version; the highest number is current."""

    id = models.BigAutoField(primary_key=True)
    sku = models.ForeignKey(Sku, on_delete=models.PROTECT, related_name="versions")
    number = models.PositiveIntegerField(_("version"))
    base_micros_per_hour = models.BigIntegerField(_("base, µ per hour"))
    created_at = models.DateTimeField(_("from"), default=timezone.now, editable=False)
    # PROTECT: SET_NULL would be an UPDATE of an append-only row. Who has set prices is deactivated, not deleted.
    created_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, blank=True, related_name="+")

    class Meta:
        verbose_name = _("price version")
        verbose_name_plural = _("price versions")
        ordering = ["sku", "-number"]
        constraints = [
            models.UniqueConstraint(fields=["sku", "number"], name="price_version_once"),
            models.CheckConstraint(condition=Q(base_micros_per_hour__gt=0), name="price_base_is_positive"),
        ]

    def __str__(self) -> str:
        return f"{self.sku_id} v{self.number}"


class PlanPrice(models.Model):
    """What a plan costs in a version: base times factor, rounded half-up to a whole µ once, here."""

    id = models.BigAutoField(primary_key=True)
    version = models.ForeignKey(PriceVersion, on_delete=models.PROTECT, related_name="plan_prices")
    plan = models.CharField(_("plan"), max_length=16, choices=Plan.choices)
    factor_milli = models.PositiveIntegerField(_("factor, thousandths"))
    micros_per_hour = models.BigIntegerField(_("µ per unit and hour"))

    class Meta:
        verbose_name = _("plan price")
        verbose_name_plural = _("plan prices")
        constraints = [
            models.UniqueConstraint(fields=["version", "plan"], name="plan_price_once"),
            models.CheckConstraint(
                condition=Q(plan__in=["on_demand", "reserved", "spot"]), name="plan_price_plan_is_known"
            ),
            models.CheckConstraint(condition=Q(micros_per_hour__gt=0), name="plan_price_is_positive"),
        ]

    def __str__(self) -> str:
        return f"{self.version_id} {self.plan} {self.micros_per_hour}"


class Account(models.Model):
    """A tenant's money in one currency. The sums are kept by conditional UPDATE, in the transaction of each entry."""

    id = models.BigAutoField(primary_key=True)
    tenant = models.ForeignKey(Tenant, on_delete=models.PROTECT, related_name="accounts")
    currency = models.CharField(_("currency"), max_length=3)
    balance_ticks = models.BigIntegerField(_("balance, ticks"), default=0)
    held_ticks = models.BigIntegerField(_("held, ticks"), default=0)
    month_cap_micros = models.BigIntegerField(
        _("spend cap per month, µ"), null=True, blank=True, help_text="per calendar month, UTC; null: none"
    )

    class Meta:
        verbose_name = _("account")
        verbose_name_plural = _("accounts")
        constraints = [
            models.UniqueConstraint(fields=["tenant", "currency"], name="account_once_per_currency"),
            models.CheckConstraint(condition=Q(held_ticks__gte=0), name="account_holds_not_negative"),
            models.CheckConstraint(
                condition=Q(month_cap_micros__isnull=True) | Q(month_cap_micros__gt=0),
                name="account_month_cap_positive",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.currency}"

    @property
    def available_ticks(self) -> int:
        """What a new order may hold."""
        return self.balance_ticks - self.held_ticks


class LedgerEntry(models.Model):
    """A line of money. ``source`` says what caused it and is unique, so nothing is booked twice."""

    class Kind(models.TextChoices):
        TOP_UP = "top_up", _("top-up")
        USAGE = "usage", _("usage")
        ADJUSTMENT = "adjustment", _("adjustment")

    id = models.BigAutoField(primary_key=True)
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="entries")
    kind = models.CharField(_("kind"), max_length=16, choices=Kind.choices)
    ticks = models.BigIntegerField(_("ticks"), help_text="positive raises the balance")
    source = models.CharField(_("source"), max_length=96, unique=True, help_text="segment:<id>, top_up:<id>")
    lease_id = models.CharField(_("lease"), max_length=32, blank=True, db_index=True)
    memo = models.CharField(_("memo"), max_length=200, blank=True)
    at = models.DateTimeField(_("at"), default=timezone.now, editable=False)

    class Meta:
        verbose_name = _("ledger entry")
        verbose_name_plural = _("ledger entries")
        ordering = ["-id"]
        indexes = [
            models.Index(fields=["account", "-id"], name="ledger_by_account"),
            models.Index(fields=["account", "at"], name="ledger_by_account_and_time"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(kind__in=["top_up", "usage", "adjustment"]), name="ledger_kind_is_known"
            ),
            models.CheckConstraint(condition=~Q(ticks=0), name="ledger_line_is_not_zero"),
            models.CheckConstraint(condition=~Q(kind="usage") | Q(ticks__lt=0), name="ledger_usage_takes"),
            models.CheckConstraint(condition=~Q(kind="top_up") | Q(ticks__gt=0), name="ledger_top_up_gives"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.ticks} {self.source}"


class HoldQuerySet(models.QuerySet["Hold"]):
    """Named questions about holds."""

    def open(self) -> HoldQuerySet:
        """Not given back yet."""
        return self.filter(released_at__isnull=True)


class Hold(models.Model):
    """Money set aside for a lease from its order on; one open hold per lease."""

    id = models.BigAutoField(primary_key=True)
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="holds")
    lease_id = models.CharField(_("lease"), max_length=32)
    ticks = models.BigIntegerField(_("ticks"))
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    released_at = models.DateTimeField(null=True, blank=True)

    objects = HoldQuerySet.as_manager()

    class Meta:
        verbose_name = _("hold")
        verbose_name_plural = _("holds")
        constraints = [
            models.UniqueConstraint(
                fields=["lease_id"], condition=Q(released_at__isnull=True), name="hold_once_per_lease"
            ),
            models.CheckConstraint(condition=Q(ticks__gte=0), name="hold_not_negative"),
        ]

    def __str__(self) -> str:
        return f"{self.lease_id} {self.ticks}"


class TopUp(models.Model):
    """Money that came in. The ``manual`` provider's are booked by an operator against a bank transfer or cash."""

    class Provider(models.TextChoices):
        MANUAL = "manual", _("booked by an operator")

    id = models.CharField(primary_key=True, max_length=32, default=ids.top_up_id, editable=False)
    account = models.ForeignKey(Account, on_delete=models.PROTECT, related_name="top_ups")
    provider = models.CharField(_("provider"), max_length=16, choices=Provider.choices, default=Provider.MANUAL)
    amount_micros = models.BigIntegerField(_("amount, µ"))
    reference = models.CharField(_("reference"), max_length=120, help_text=_("what the payment can be found by"))
    booked_by = models.ForeignKey(User, on_delete=models.PROTECT, null=True, blank=True, related_name="+")
    at = models.DateTimeField(_("at"), default=timezone.now, editable=False)

    class Meta:
        verbose_name = _("top-up")
        verbose_name_plural = _("top-ups")
        ordering = ["-at"]
        constraints = [
            models.CheckConstraint(condition=Q(provider__in=["manual"]), name="top_up_provider_is_known"),
            models.CheckConstraint(condition=Q(amount_micros__gt=0), name="top_up_is_positive"),
            # An operator who presses the button twice books one payment once.
            models.UniqueConstraint(F("account"), F("provider"), F("reference"), name="top_up_once_per_reference"),
        ]

    def __str__(self) -> str:
        return f"{self.id} {self.amount_micros}"
