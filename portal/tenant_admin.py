"""The operators' page of tenants: members, and the buttons that suspend one and take that back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext_lazy as _

from portal import members, suspension
from portal.actor import Actor
from portal.admin_base import NamedFormSet
from portal.errors import DomainError
from portal.models import Membership, Tenant
from portal.roles import Role
from portal.services import audit

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.utils.functional import Promise

MAY: Final = "portal.change_tenant"
SUSPEND_WORDS: Final = _("Its members read the reason. Its leases end now, and nothing new can be ordered.")
RESTORE_WORDS: Final = _("It may order again. Leases that were ended stay ended.")


class ReasonForm(forms.Form):
    """Why a tenant is suspended."""

    reason = forms.CharField(
        label=_("Reason"), max_length=suspension.MAX_REASON, help_text=_("the tenant's members read it")
    )


class _Members(NamedFormSet):
    """An organisation keeps an owner, whatever an operator changes."""

    def name_of(self, row: Membership) -> str:
        """By their address."""
        return row.user.email

    def clean(self) -> None:
        """Refuse to take the last one."""
        super().clean()
        kept = [form for form in self.forms if form.is_valid() and not form.cleaned_data.get("DELETE")]
        roles = {form.cleaned_data.get("role") for form in kept if form.cleaned_data.get("user")}
        if roles and Role.OWNER not in roles:
            raise ValidationError(_("One member at least must be an owner."))


class MembershipInline(admin.TabularInline[Membership, Tenant]):
    """Members of a tenant."""

    model = Membership
    formset = _Members
    extra = 0
    autocomplete_fields = ["user"]
    readonly_fields = ["created_at"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Membership]:
        """With the people, whose addresses name the rows."""
        return super().get_queryset(request).select_related("user")

    def has_add_permission(self, request: HttpRequest, obj: Tenant | None = None) -> bool:
        """Nobody comes into an organisation that its owner has deleted."""
        return (obj is None or obj.deleted_at is None) and super().has_add_permission(request, obj)


@admin.register(Tenant)
class TenantAdmin(admin.ModelAdmin[Tenant]):
    """Who rents and pays."""

    list_display = ["name", "id", "kind", "suspended_at", "deleted_at", "created_at"]
    list_filter = ["kind", "suspended_at", "deleted_at"]
    search_fields = ["name", "id", "memberships__user__email"]
    readonly_fields = ["id", "kind", "suspended_at", "suspension_reason", "deleted_at", "created_at"]
    fields = ["id", "name", "kind", "suspended_at", "suspension_reason", "deleted_at", "created_at"]
    inlines = [MembershipInline]
    ordering = ["-created_at"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """People create organisations themselves; the personal ones come with the account."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Tenant | None = None) -> bool:
        """Money is kept; a tenant is suspended instead."""
        return False

    def get_urls(self) -> list[URLPattern]:
        """The two buttons beside Django's own pages."""
        return [
            path("<str:tenant_id>/suspend/", self.admin_site.admin_view(self._suspend), name="portal_tenant_suspend"),
            path("<str:tenant_id>/restore/", self.admin_site.admin_view(self._restore), name="portal_tenant_restore"),
            *super().get_urls(),
        ]

    def save_formset(self, request: HttpRequest, form: Any, formset: Any, change: bool) -> None:  # noqa: FBT001  # Django's signature
        """Save members; who went loses tokens, keys and sight at once, as when a member removes them."""
        super().save_formset(request, form, formset, change)
        for row in formset.deleted_objects:
            members.revoke_tokens(user=row.user, tenant_ids=[row.tenant_id])
        changed = [row for row, _fields in formset.changed_objects]
        for row in (*formset.deleted_objects, *changed, *formset.new_objects):
            members.tell_change(user=row.user, tenant_id=row.tenant_id)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:  # noqa: FBT001  # Django's signature
        """Save members too, and say who changed what."""
        super().save_related(request, form, formsets, change)
        people = {row.user.email: row.role for row in form.instance.memberships.select_related("user")}
        data = {"changed": list(form.changed_data), "members": people}
        audit(actor=Actor.of(request), action="tenant.changed", obj=form.instance, tenant=form.instance, data=data)

    def _suspend(self, request: HttpRequest, tenant_id: str) -> HttpResponse:
        tenant = _get(request, tenant_id)
        form = ReasonForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            try:
                suspension.suspend(tenant=tenant, reason=form.cleaned_data["reason"], actor=Actor.of(request))
            except DomainError as error:
                form.add_error("reason", error.detail)
            else:
                messages.success(request, _("The tenant is suspended; its members are told."))
                return HttpResponseRedirect(_back(tenant))
        return self._ask(request, tenant, _("Suspend"), SUSPEND_WORDS, form)

    def _restore(self, request: HttpRequest, tenant_id: str) -> HttpResponse:
        tenant = _get(request, tenant_id)
        if request.method == "POST":
            suspension.restore(tenant=tenant, actor=Actor.of(request))
            messages.success(request, _("The suspension is over; its members are told."))
            return HttpResponseRedirect(_back(tenant))
        return self._ask(request, tenant, _("End the suspension"), RESTORE_WORDS, None)

    def _ask(
        self, request: HttpRequest, tenant: Tenant, title: Promise | str, explains: Promise | str, form: Any
    ) -> HttpResponse:
        facts = {
            **self.admin_site.each_context(request),
            "tenant_shown": tenant,
            "title": title,
            "explains": explains,
            "form": form,
            "back": _back(tenant),
        }
        return TemplateResponse(request, "admin/tenant_confirm.html", facts)


def _get(request: HttpRequest, tenant_id: str) -> Tenant:
    if not request.user.has_perm(MAY):
        raise PermissionDenied
    return get_object_or_404(Tenant, pk=tenant_id)


def _back(tenant: Tenant) -> str:
    return reverse("admin:portal_tenant_change", args=[tenant.pk])
