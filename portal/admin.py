"""The operators' pages of accounts. Status is shown and changed by buttons of services, audit rows are only read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import allauth.mfa.admin
import allauth.usersessions.admin  # noqa: F401  # both register what is taken out below
from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from django.contrib import admin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.models import Group
from django.utils.translation import gettext_lazy as _

from portal import deletion, tenant_admin  # noqa: F401  # importing the second registers tenants
from portal.actor import Actor
from portal.admin_base import ReadOnly
from portal.models import ApiToken, AuditEvent, SshKey, User
from portal.services import audit
from portal.staff_access import guard

if TYPE_CHECKING:
    from django.forms import ModelForm
    from django.http import HttpRequest

admin.site.site_header = _("Lessor operations")
admin.site.site_title = _("Lessor operations")
admin.site.index_title = _("Fleet, renters, money")
# One way in for everyone: rate limits, verified addresses and the audit of logins hold for operators too.
guard(admin.site)


@admin.register(User)
class UserAdmin(DjangoUserAdmin[User]):
    """People. Passwords are reset by mail; nobody types one for somebody else."""

    list_display = ["email", "is_active", "is_staff", "last_login", "date_joined"]
    list_filter = ["is_active", "is_staff"]
    search_fields = ["email", "id"]
    ordering = ["-date_joined"]
    filter_horizontal = ["user_permissions"]
    readonly_fields = ["id", "email", "last_login", "date_joined"]
    fieldsets = (
        (None, {"fields": ["id", "email", "first_name", "last_name"]}),
        (_("Rights"), {"fields": ["is_active", "is_staff", "is_superuser", "user_permissions"]}),
        (_("Dates"), {"fields": ["last_login", "date_joined"]}),
    )

    def has_add_permission(self, request: HttpRequest) -> bool:
        """People sign up; ``manage.py createsuperuser`` makes the first operator."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: User | None = None) -> bool:
        """A person who left is made inactive: leases and ledger keep pointing to somebody."""
        return False

    def save_model(self, request: HttpRequest, obj: User, form: ModelForm[User], change: bool) -> None:  # noqa: FBT001  # Django's signature
        """Save and say who changed what. Closing an account and opening it again are services of their own."""
        wanted = obj.is_active
        if "is_active" in form.changed_data:
            obj.is_active = not wanted  # what it was; the service changes it, with all that follows
        super().save_model(request, obj, form, change)
        audit(actor=Actor.of(request), action="user.changed", obj=obj, data=_changes(form))
        if "is_active" in form.changed_data:
            service = deletion.reactivate if wanted else deletion.deactivate
            obj.is_active = service(user=obj, actor=Actor.of(request)).is_active

    def get_readonly_fields(self, request: HttpRequest, obj: User | None = None) -> list[str]:
        """An account that its owner has deleted stays closed."""
        closed = ["is_active"] if obj is not None and deletion.is_deleted(obj) else []
        return [*self.readonly_fields, *closed]


@admin.register(SshKey)
class SshKeyAdmin(ReadOnly[SshKey]):
    """Which keys exist; people manage their own."""

    list_display = ["name", "user", "key_type", "fingerprint", "created_at", "last_used_at"]
    search_fields = ["fingerprint", "user__email", "name"]
    list_select_related = ["user"]


@admin.register(ApiToken)
class ApiTokenAdmin(ReadOnly[ApiToken]):
    """Which tokens exist, without their digests."""

    list_display = ["name", "prefix", "user", "tenant", "expires_at", "revoked_at", "last_used_at", "last_used_ip"]
    search_fields = ["prefix", "user__email", "name"]
    list_select_related = ["user", "tenant"]
    exclude = ["digest"]


@admin.register(AuditEvent)
class AuditEventAdmin(ReadOnly[AuditEvent]):
    """Who changed what."""

    list_display = ["at", "actor_label", "action", "object_type", "object_id", "tenant", "ip"]
    list_filter = ["action"]
    search_fields = ["=object_id", "actor_label", "action"]
    date_hierarchy = "at"
    list_select_related = ["tenant"]
    show_full_result_count = False


# Rights of operators are given in the user's form; groups would be a second way.
admin.site.unregister(Group)
# Seeds and session keys are nobody's to read; `manage.py remove_second_factor` helps who lost theirs.
admin.site.unregister(Authenticator)
admin.site.unregister(UserSession)


def _changes(form: Any) -> dict[str, Any]:
    return {"changed": list(form.changed_data)}
