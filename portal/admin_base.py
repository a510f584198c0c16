"""Bases for the admin pages of all apps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from django.contrib import admin
from django.db.models import Model

if TYPE_CHECKING:
    from django.http import HttpRequest

M = TypeVar("M", bound=Model)


class ReadOnlyInline(admin.TabularInline[Any, Any]):
    """Rows shown on the page of what they belong to, never added, changed or deleted there."""

    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Never; with the view permission the values are shown."""
        return False


class ReadOnly(admin.ModelAdmin[M]):
    """Rows that are looked at, never added, changed or deleted here."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Never."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        """Never; with the view permission the page shows the values."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: M | None = None) -> bool:
        """Never."""
        return False
