"""The operators' pages of hardware. Facts are read, never typed; changes are behind buttons (nodes/admin_views.py)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.db.models import Count, OuterRef, Q, Subquery
from django.urls import NoReverseMatch, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from nodes import admin_views
from nodes.models import Gpu, GpuSlot, Node, SshEvent
from portal.admin_base import ReadOnly, ReadOnlyInline, Values

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern

SKEW_WARNING_S: Final = 30
STATUS_WORDS: Final = {
    "revoked": _("revoked"),
    "not_enrolled": _("not enrolled"),
    "silent": _("silent"),
    "draining": _("draining"),
    "not_ready": _("not ready"),
    "ready": _("ready"),
}


class GpuInline(ReadOnlyInline):
    """The GPUs of a node, to look at."""

    model = Gpu
    fields = ("uuid", "model", "index", "pci_bus_id", "health", "health_note", "mig_mode")
    readonly_fields = fields
    show_change_link = True

    def get_queryset(self, request: HttpRequest) -> QuerySet[Gpu]:
        """Retired ones are in the list of GPUs."""
        return super().get_queryset(request).filter(retired_at__isnull=True)


@admin.register(Node)
class NodeAdmin(ReadOnly[Node]):
    """Machines. Added by a form that shows the enrolment command once; changed by buttons only."""

    list_display = ["name", "site", "state", "gpus", "last_seen_at", "agent_version", "skew", "tag"]
    list_filter = [("site", Values), "simulated", "preflight_ok"]
    search_fields = ["name", "=id", "=machine_id", "gpus__uuid"]
    ordering = ["name", "id"]
    inlines = [GpuInline]
    change_form_template = "admin/nodes/node/change_form.html"
    readonly_fields = ["state", "skew", "tag", "machine_facts", "capability_facts"]
    fieldsets = (
        (None, {"fields": ["id", "name", "site", "state", "tag"]}),
        (_("Contact"), {"fields": ["enrolled_at", "last_seen_at", "inventory_at", "agent_version", "boot_id", "skew"]}),
        (_("SSH"), {"fields": ["ssh_host", "ssh_port", "ssh_host_key"]}),
        (_("Sales"), {"fields": ["preflight_ok", "preflight_at", "draining_since", "revoked_at", "broker_note"]}),
        (
            _("Machine"),
            {"fields": ["machine_id", "driver_version", "cuda_version", "machine_facts", "capability_facts"]},
        ),
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        """By the right to add nodes."""
        return admin.ModelAdmin.has_add_permission(self, request)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Node]:
        """With GPUs counted: one query for any number of rows."""
        present = Q(gpus__retired_at__isnull=True)
        healthy = present & Q(gpus__health=Gpu.Health.HEALTHY, gpus__mig_mode=False)
        busy = Gpu.objects.filter(slots__used_milli__gt=0).values("pk")
        return (
            super()
            .get_queryset(request)
            .annotate(
                gpus_total=Count("gpus", filter=present, distinct=True),
                gpus_free=Count("gpus", filter=healthy & ~Q(gpus__in=busy), distinct=True),
            )
        )

    def get_urls(self) -> list[URLPattern]:
        """The buttons beside Django's own pages."""
        view = self.admin_site.admin_view
        command = view(partial(_new_command, self.admin_site))
        buttons = [
            path(
                f"<str:node_id>/{name}/", view(partial(_node_action, self.admin_site, name)), name=f"nodes_node_{name}"
            )
            for name in admin_views.BUTTONS
        ]
        return [path("<str:node_id>/command/", command, name="nodes_node_command"), *buttons, *super().get_urls()]

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Our own form: it ends in a command, not in a saved row."""
        return admin_views.add_node(request, self.admin_site)

    @admin.display(description=_("status"))
    def state(self, node: Node) -> str:
        """One word."""
        return str(STATUS_WORDS[node.status()])

    @admin.display(description=_("GPUs free / all"))
    def gpus(self, node: Any) -> str:
        """What can be leased if the node sells, and what is there."""
        return f"{node.gpus_free} / {node.gpus_total}"

    @admin.display(description=_("clock"))
    def skew(self, node: Node) -> str:
        """A warning when the node's clock is off; nothing depends on it."""
        if node.clock_skew_s is None:
            return gettext("unknown")
        if abs(node.clock_skew_s) < SKEW_WARNING_S:
            return gettext("right")
        return gettext("off by %(seconds)s s") % {"seconds": f"{node.clock_skew_s:+d}"}

    @admin.display(description=_("GPUs are"))
    def tag(self, node: Node) -> str:
        """Simulated GPUs are never passed off as real ones."""
        return gettext("simulated") if node.simulated else gettext("real")

    @admin.display(description=_("machine"))
    def machine_facts(self, node: Node) -> str:
        """The machine as the agent describes it."""
        return _facts(node.machine)

    @admin.display(description=_("capabilities"))
    def capability_facts(self, node: Node) -> str:
        """What engine and kernel can do."""
        return _facts(node.capabilities)


@admin.register(Gpu)
class GpuAdmin(ReadOnly[Gpu]):
    """Cards: their health, and who has them now."""

    list_display = ["uuid", "model", "node", "health", "health_note", "used", "lease_link", "retired_at"]
    list_filter = ["health", "model", "node", "mig_mode"]
    search_fields = ["uuid", "serial", "node__name"]
    list_select_related = ["node"]
    ordering = ["node__name", "pci_bus_id", "uuid"]
    change_form_template = "admin/nodes/gpu/change_form.html"
    readonly_fields = ["used", "lease_link"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Gpu]:
        """With the lease that holds the card. ``allocations`` is rental's relation to our slots, used by name only."""
        taken = GpuSlot.objects.filter(gpu=OuterRef("pk"), allocations__released_at__isnull=True)
        return (
            super()
            .get_queryset(request)
            .annotate(
                slots_used=Count("slots", filter=Q(slots__used_milli__gt=0), distinct=True),
                slots_all=Count("slots", distinct=True),
                lease=Subquery(taken.order_by("n").values("allocations__lease")[:1]),
            )
        )

    def get_urls(self) -> list[URLPattern]:
        """The buttons beside Django's own pages."""
        view = self.admin_site.admin_view
        buttons = [
            path(f"<int:gpu_id>/{name}/", view(partial(_gpu_action, self.admin_site, name)), name=f"nodes_gpu_{name}")
            for name in ("quarantine", "return")
        ]
        return [*buttons, *super().get_urls()]

    @admin.display(description=_("slots used"))
    def used(self, gpu: Any) -> str:
        """Slots in use, and all of them."""
        return f"{gpu.slots_used} / {gpu.slots_all}"

    @admin.display(description=_("lease"))
    def lease_link(self, gpu: Any) -> str:
        """The lease that holds it."""
        if not gpu.lease:
            return ""
        try:
            return format_html('<a href="{}">{}</a>', reverse("admin:rental_lease_change", args=[gpu.lease]), gpu.lease)
        except NoReverseMatch:  # an installation whose operators have no lease pages
            return str(gpu.lease)


@admin.register(SshEvent)
class SshEventAdmin(ReadOnly[SshEvent]):
    """Who came in over SSH, from where, with which key. Only to look at."""

    list_display = ["at", "kind", "lease_ref", "peer", "key", "detail", "node", "bytes_in", "bytes_out"]
    list_filter = ["kind", "node"]
    search_fields = ["=lease_ref", "=peer", "=key", "=session"]
    list_select_related = ["node"]
    date_hierarchy = "at"
    ordering = ["-at", "-id"]
    show_full_result_count = False  # the table is long; counting it says nothing


def _node_action(site: admin.AdminSite, action: str, request: HttpRequest, node_id: str) -> HttpResponse:
    return admin_views.node_action(request, site, node_id, action)


def _new_command(site: admin.AdminSite, request: HttpRequest, node_id: str) -> HttpResponse:
    return admin_views.new_command(request, site, node_id)


def _gpu_action(site: admin.AdminSite, action: str, request: HttpRequest, gpu_id: int) -> HttpResponse:
    return admin_views.gpu_action(request, site, gpu_id, action)


def _facts(facts: dict[str, Any]) -> str:
    return format_html_join("", "{}: {}<br>", ((name, _value(value)) for name, value in sorted(facts.items())))


def _value(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
