"""Every route there is, as data: for the check that API views declare scopes, and for the matrix of the tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.urls import URLPattern, URLResolver, get_resolver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True)
class Route:
    """One pattern of the URL conf. ``path`` is the joined pattern text, for example ``leases/<str:lease_id>/``."""

    path: str
    name: str
    view: Callable[..., Any]

    @property
    def view_class(self) -> type[Any] | None:
        """The class behind a class-based view (DRF calls it ``cls``), or None for a function."""
        return getattr(self.view, "cls", None) or getattr(self.view, "view_class", None)

    def methods(self) -> frozenset[str]:
        """What a class-based view answers, without HEAD and OPTIONS; empty for a function, which does not tell."""
        cls = self.view_class
        if cls is None:
            return frozenset()
        names = {name.upper() for name in cls.http_method_names if hasattr(cls, name)}
        return frozenset(names - {"HEAD", "OPTIONS"})


def every_route() -> Iterator[Route]:
    """All patterns, depth first, in the order they are tried."""
    yield from _walk(get_resolver().url_patterns, "")


def _walk(patterns: list[URLPattern | URLResolver], before: str) -> Iterator[Route]:
    for pattern in patterns:
        path = before + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _walk(pattern.url_patterns, path)
        else:
            yield Route(path=path, name=pattern.name or "", view=pattern.callback)
