"""Questions that are asked hundreds of times a second: their SQL is made once per connection and not once per request.

Django builds the SQL of a query anew each time, which takes several times as long as the database needs for a lookup by
key. Only for lookups whose shape never changes; everything else is an ordinary queryset, and so are the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import DEFAULT_DB_ALIAS, connections

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import QuerySet


class Ready:
    """A queryset with gaps: ``build(**gaps)`` makes it, ``rows(**values)`` asks.

    ``gaps`` are example values of the right types, each different from every other parameter of the query. A value must
    have its gap's type; None would need another shape of SQL.
    """

    def __init__(self, build: Callable[..., QuerySet[Any, Any]], **gaps: Any) -> None:
        self._build, self._gaps = build, gaps

    def rows(self, **values: Any) -> list[Any]:
        """Models, or tuples of a ``values_list``, as the queryset gives them. One query."""
        connection = connections[DEFAULT_DB_ALIAS]
        kept: dict[Ready, _Made] = connection.__dict__.setdefault("_lessor_ready", {})
        made = kept.get(self)
        if made is None:
            made = kept[self] = _Made(self._build(**self._gaps), self._gaps, connection)
        return made.rows(values)


class _Made:
    """The SQL of one question for one connection; a connection belongs to one thread at a time."""

    def __init__(self, queryset: QuerySet[Any, Any], gaps: Mapping[str, Any], connection: BaseDatabaseWrapper) -> None:
        self.queryset = queryset
        self.compiler = queryset.query.get_compiler(connection=connection)
        self.sql, params = self.compiler.as_sql()
        written = {connection.ops.adapt_unknown_value(value): name for name, value in gaps.items()}
        self.params = [(written.get(param), param) for param in params]
        self.adapt = connection.ops.adapt_unknown_value
        if {name for name, _ in self.params if name} != set(gaps):
            raise TypeError(f"not every gap of {sorted(gaps)} is a parameter of its own: {self.sql}")

    def rows(self, values: Mapping[str, Any]) -> list[Any]:
        bound = tuple(param if name is None else self.adapt(values[name]) for name, param in self.params)
        self.compiler.as_sql = lambda *_args, **_options: (self.sql, bound)
        asked = self.queryset.all()
        asked.query.get_compiler = lambda *_args, **_options: self.compiler  # type: ignore[method-assign]
        return list(asked)
