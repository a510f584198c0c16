"""What every page knows: who is here, for which tenant, with how much money."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from portal.services import current_tenant, memberships

if TYPE_CHECKING:
    from django.http import HttpRequest

THEMES = ("auto", "light", "dark")


def shell(request: HttpRequest) -> dict[str, Any]:
    """Context of base.html; the balance comes from billing/context.py."""
    theme = request.COOKIES.get("theme", "auto")
    facts: dict[str, Any] = {
        "theme": theme if theme in THEMES else "auto",
        "now_unix": int(time.time()),
        "is_operator": getattr(request.user, "is_staff", False) if hasattr(request, "user") else False,
    }
    if getattr(request, "user", None) is not None and request.user.is_authenticated:
        facts["tenant"] = current_tenant(request)
        facts["memberships"] = memberships(request)
    return facts
