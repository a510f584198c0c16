"""Questions that are asked hundreds of times a second: their SQL is made once per connection and not once per request.

Django builds the SQL of a query anew each time, which takes several times as long as the database needs for a lookup by
key. Only for lookups whose shape never changes; everything else is an ordinary queryset. The rows are ordinary models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import Model
from django.db.models.query import ModelIterable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models import QuerySet

M = TypeVar("M", bound=Model)


class Ready(Generic[M]):
    """A queryset of models with gaps: ``build(**gaps)`` makes it, ``rows(**values)`` asks.

    ``gaps`` are example values of the right types, each different from every other parameter of the query. A value must
    have its gap's type; None would need another shape of SQL.
    """

    def __init__(self, build: Callable[..., QuerySet[M]], **gaps: Any) -> None:
        self._build, self._gaps = build, gaps

    def rows(self, **values: Any) -> list[M]:
        """The models, each field loaded as the queryset says. One query."""
        connection = connections[DEFAULT_DB_ALIAS]
        kept: dict[Ready[Any], _Made] = connection.__dict__.setdefault("_lessor_ready", {})
        made = kept.get(self)
        if made is None:
            made = kept[self] = _Made(self._build(**self._gaps), self._gaps, connection)
        return cast("list[M]", made.rows(values))


class _Made:
    """The SQL of one question for one connection; a connection belongs to one thread at a time."""

    def __init__(self, queryset: QuerySet[Any], gaps: Mapping[str, Any], connection: BaseDatabaseWrapper) -> None:
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
        return list(ModelIterable(asked))
