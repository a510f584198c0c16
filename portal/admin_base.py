"""Bases for the admin pages of all apps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from django.contrib import admin
from django.db.models import Model
from django.forms.models import BaseInlineFormSet
from django.utils.text import capfirst
from django.utils.translation import gettext as _

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.contrib.admin.views.main import ChangeList
    from django.http import HttpRequest

M = TypeVar("M", bound=Model)


class NamedFormSet(BaseInlineFormSet[Any, Any, Any]):
    """Fields in a table of rows carry their names: Django's template gives such fields no labels."""

    def add_fields(self, form: Any, index: int | None) -> None:
        """The column and whose row it is, for those who do not see the table."""
        super().add_fields(form, index)
        row = self.name_of(form.instance) if form.instance.pk else ""
        for field in form.fields.values():
            label = str(field.label or "")
            if label and not field.widget.is_hidden:
                field.widget.attrs.setdefault("aria-label", f"{capfirst(label)}: {row}" if row else capfirst(label))

    def name_of(self, row: Any) -> str:
        """What people call a row."""
        return str(row)


class Values(admin.AllValuesFieldListFilter):
    """Values that occur; the empty one has a name."""

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """As Django, with a word for nothing."""
        for choice in super().choices(changelist):
            yield {**choice, "display": choice["display"] or _("none")}


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
