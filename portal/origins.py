"""Which page a request comes from, as far as browsers tell: for connections that no CSRF token protects."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from django.http import HttpRequest


def from_elsewhere(request: HttpRequest) -> bool:
    """Did another site's page, or a sibling's such as a lease's app, open this? Programs send neither header."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in {"same-origin", "none"}:
        return True
    origin = request.headers.get("Origin")
    return origin is not None and urlsplit(origin).netloc.lower() != request.get_host().lower()
