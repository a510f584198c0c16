"""Ready questions answer as the queryset they are made of."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.models import ApiToken, User
from portal.ready import Ready
from tests import make

if TYPE_CHECKING:
    from django.db.models import QuerySet

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def _valid(name: str, now: datetime) -> QuerySet[ApiToken]:
    return ApiToken.objects.filter(name=name, expires_at__gt=now).select_related("user").order_by("pk")


def test_it_answers_as_its_queryset_each_time_with_the_values_of_that_time(user: User, stranger: User) -> None:
    now = timezone.now()
    for owner, name, days in [(user, "a", 1), (stranger, "a", 2), (user, "b", 3), (user, "a", -1)]:
        make.make_token(owner, name=name, expires_at=now + timedelta(days=days))
    question = Ready(_valid, name="?name", now=LONG_AGO)
    for name, moment in [("a", now), ("b", now), ("a", now + timedelta(days=1)), ("none", now)]:
        with CaptureQueriesContext(connection) as seen:
            rows = question.rows(name=name, now=moment)
            assert [row.user.email for row in rows] == [row.user.email for row in rows]
        assert len(seen) == 1
        assert rows == list(_valid(name, moment))
        assert [row.__dict__.keys() for row in rows] == [row.__dict__.keys() for row in _valid(name, moment)]
        assert [row.scopes for row in rows] == [row.scopes for row in _valid(name, moment)]


def test_a_gap_that_is_no_parameter_is_a_mistake(db: None) -> None:
    with pytest.raises(TypeError, match="colour"):
        Ready(lambda colour: ApiToken.objects.filter(name="a"), colour="?colour").rows(colour="red")
