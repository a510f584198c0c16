"""Lists of the API: a page is the rows after a cursor, so rows that arrive meanwhile are not doubled or skipped."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import ValidationError
from django.db.models import Q
from rest_framework.pagination import BasePagination
from rest_framework.response import Response

from portal.errors import InvalidInput

if TYPE_CHECKING:
    from django.db.models import Model, QuerySet
    from rest_framework.request import Request
    from rest_framework.views import APIView

DEFAULT: Final = 50
MOST: Final = 200
MAX_CURSOR: Final = 400


class Cursor(BasePagination):
    """``?limit=50&cursor=…`` → ``{"results": […], "next": cursor or null}``.

    The order is that of the view's ``cursor_by`` (a field with or without ``-``), else the model's first; the primary
    key breaks ties in the same direction.
    """

    def paginate_queryset(  # type: ignore[override]  # a page of rows needs a database, a list has none
        self, queryset: QuerySet[Any], request: Request, view: APIView | None = None
    ) -> list[Any]:
        """The rows of one page. InvalidInput for a limit or cursor that is not ours."""
        limit = _limit(request.query_params.get("limit"))
        order = getattr(view, "cursor_by", None) or str(queryset.model._meta.ordering[0])
        field, sign = order.removeprefix("-"), "-" if order.startswith("-") else ""
        ordered = queryset.order_by(f"{sign}{field}", f"{sign}pk")
        if cursor := request.query_params.get("cursor"):
            ordered = ordered.filter(_after(queryset.model, field, cursor, "lt" if sign else "gt"))
        rows = list(ordered[: limit + 1])
        self.next = _pack(rows[limit - 1], field) if len(rows) > limit else None
        return rows[:limit]

    def get_paginated_response(self, data: Any) -> Response:
        """The page as the API answers it."""
        return Response({"results": data, "next": self.next})

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """For the OpenAPI document."""
        following = {
            "type": ["string", "null"],
            "description": "Pass it as `cursor` to get the next page; null: no more.",
        }
        properties = {"results": schema, "next": following}
        return {"type": "object", "required": ["results", "next"], "properties": properties}

    def get_schema_operation_parameters(self, view: APIView) -> list[dict[str, Any]]:
        """For the OpenAPI document."""
        limit = {"type": "integer", "minimum": 1, "maximum": MOST, "default": DEFAULT}
        return [
            {"name": "limit", "in": "query", "required": False, "schema": limit, "description": "Rows per page."},
            {
                "name": "cursor",
                "in": "query",
                "required": False,
                "schema": {"type": "string"},
                "description": "From `next`.",
            },
        ]


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:9]) <= MOST:
        raise InvalidInput.field("limit", f"Must be a whole number from 1 to {MOST}.")
    return int(text[:9])


def _pack(row: Model, field: str) -> str:
    value = row._meta.get_field(field).value_to_string(row)  # type: ignore[union-attr]  # a concrete field
    return base64.urlsafe_b64encode(json.dumps([value, str(row.pk)]).encode()).decode().rstrip("=")


def _after(model: type[Model], field: str, cursor: str, compare: str) -> Q:
    try:
        cut = cursor[:MAX_CURSOR]
        padded = cut + "=" * (-len(cut) % 4)
        value, pk = json.loads(base64.urlsafe_b64decode(padded))
        at: Any = model._meta.get_field(field).to_python(value)  # type: ignore[union-attr]  # a concrete field
        key: Any = model._meta.pk.to_python(pk)
    except (ValueError, TypeError, ValidationError) as error:
        raise _not_ours() from error
    if at is None or key is None or "\x00" in f"{at}{key}":  # PostgreSQL has no NUL in text
        raise _not_ours()
    return Q(**{f"{field}__{compare}": at}) | Q(**{field: at, f"pk__{compare}": key})


def _not_ours() -> InvalidInput:
    return InvalidInput.field("cursor", "Not a cursor of this list; take it from `next`.")
