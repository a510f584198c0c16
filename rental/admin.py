"""The operators' pages of leases. Nothing is edited; what can be done is behind buttons (rental/admin_views.py)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.urls import path
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from portal.admin_base import ReadOnly, ReadOnlyInline
from portal.templatetags.lessor import duration, ticks_cost
from rental import admin_views, metering
from rental.models import Allocation, Lease, LeaseActivity, LeaseEvent, UsageSegment

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern


class EventInline(ReadOnlyInline):
    """What happened, in order."""

    model = LeaseEvent
    fields = readonly_fields = ("at", "from_state", "to_state", "code", "detail", "actor_label", "data")


class SegmentInline(ReadOnlyInline):
    """What was charged."""

    model = UsageSegment
    fields = readonly_fields = ("start", "end", "seconds", "units", "price_micros_per_hour", "ticks")


class AllocationInline(ReadOnlyInline):
    """Which slots it holds or held."""

    model = Allocation
    fields = readonly_fields = ("slot", "gpu", "milli", "generation", "taken_at", "released_at")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Allocation]:
        """With the cards."""
        return Allocation.objects.select_related("slot__gpu").order_by("pk")

    @admin.display(description=_("GPU"))
    def gpu(self, allocation: Allocation) -> str:
        """The card's UUID."""
        return allocation.slot.gpu.uuid


class ShadowFilter(admin.SimpleListFilter):
    """Leases that IDLE_MODE=shadow would have released."""

    title = _("idle, only noted")
    parameter_name = "idle_shadow"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """The choice beside all."""
        return [("yes", _("would have been released"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Lease]) -> QuerySet[Lease]:
        """Those the sweep noted."""
        return queryset.filter(activity__shadowed_for__isnull=False) if self.value() == "yes" else queryset


class ActivityInline(ReadOnlyInline):
    """What counted as use."""

    model = LeaseActivity
    fields = readonly_fields = (
        "sampled_at", "active_at", "active_signal", "active_known", "uncovered_s", "signals", "warned_at",
        "shadowed_for",
    )  # fmt: skip


@admin.register(Lease)
class LeaseAdmin(ReadOnly[Lease]):
    """Leases. Their state has one writer, and it is not this page."""

    list_display = [
        "id", "name", "tenant", "state", "end_reason", "gpu_model", "gpu_count", "node", "requested_at", "ended_at",
    ]  # fmt: skip
    list_filter = ["state", "end_reason", ShadowFilter, "plan", "gpu_model", "node"]
    search_fields = ["=id", "name", "=tenant__id", "tenant__name", "created_by__email", "=container_id"]
    list_select_related = ["tenant", "node"]
    date_hierarchy = "requested_at"
    ordering = ["-requested_at", "-id"]
    inlines = [EventInline, ActivityInline, SegmentInline, AllocationInline]
    change_form_template = "admin/rental/lease/change_form.html"
    readonly_fields = ["charged", "cost"]
    fieldsets = (
        (None, {"fields": ["id", "name", "tenant", "created_by", "state", "end_reason", "end_detail", "progress"]}),
        (
            _("Ordered"),
            {
                "fields": [
                    "plan", "priority", "gpu_model", "gpu_count", "gpu_memory_gb", "image", "ssh_key_ids",
                    "max_duration_s", "inactive_timeout_s", "spend_cap_micros", "quote_id",
                ]
            },
        ),
        (_("Money"), {"fields": ["price_version", "currency", "price_micros_per_hour", "units", "charged", "cost"]}),
        (_("Place"), {"fields": ["node", "generation", "container_id", "cpus_milli", "memory_bytes", "evidence"]}),
        (
            _("Times"),
            {
                "fields": [
                    "requested_at", "assigned_at", "started_at", "ready_at", "confirmed_at", "kept_at", "deadline_at",
                    "stop_requested_at", "ended_at",
                ]
            },
        ),
    )  # fmt: skip

    def get_urls(self) -> list[URLPattern]:
        """The buttons beside Django's own pages."""
        view = self.admin_site.admin_view
        return [
            path("<str:lease_id>/stop/", view(partial(_stop, self.admin_site)), name="rental_lease_stop"),
            path("<str:lease_id>/wake/", view(partial(_wake, self.admin_site)), name="rental_lease_wake"),
            *super().get_urls(),
        ]

    @admin.display(description=_("charged"))
    def charged(self, lease: Lease) -> str:
        """Time so far, the open segment included."""
        return duration(metering.used([lease], timezone.now()).get(lease.pk, (0, 0))[0])

    @admin.display(description=_("cost so far"))
    def cost(self, lease: Lease) -> str:
        """Money so far."""
        ticks = metering.used([lease], timezone.now()).get(lease.pk, (0, 0))[1]
        return gettext("%(amount)s (%(ticks)s ticks)") % {"amount": ticks_cost(ticks, lease.currency), "ticks": ticks}


def _stop(site: admin.AdminSite, request: HttpRequest, lease_id: str) -> HttpResponse:
    return admin_views.stop(request, site, lease_id)


def _wake(site: admin.AdminSite, request: HttpRequest, lease_id: str) -> HttpResponse:
    return admin_views.wake(request, site, lease_id)
