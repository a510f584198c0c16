"""Live pages: who may listen, what is told, how long, and how many at once. With a Redis of their own."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from allauth.usersessions.models import UserSession
from asgiref.sync import sync_to_async
from django.db import connection
from django.test import AsyncClient, Client
from django.urls import reverse

from nodes import broker
from portal import deletion, members
from portal.actor import Actor
from portal.models import Membership
from portal.sessions import end_sessions
from rental import live, streams
from tests import make
from tests.rental.factories import order, report
from tests.rig.services import redis_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from portal.models import User
    from rental.models import Lease

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _redis(settings: Any) -> Iterator[None]:
    """Streams and messages meet here."""
    with redis_server() as url:
        settings.REDIS_URL = settings.NODE_BROKER_URL = url
        broker.close()
        live.close()
        yield
        broker.close()
        live.close()


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks again after a second instead of fifteen."""
    monkeypatch.setattr(streams, "CHECK_S", 1)
    monkeypatch.setattr(streams, "OFFERS_PAUSE_S", 0.2)


@pytest.fixture
def lease(user: User) -> Lease:
    """A lease just ordered."""
    make.make_price()
    make.make_node(gpus=2)
    make.make_key(user)
    make.make_balance(make.tenant_of(user))
    return order(user, make.tenant_of(user))


async def browser(user: User | None) -> AsyncClient:
    """A browser that speaks to the ASGI process."""
    client = AsyncClient()
    if user is not None:
        await client.aforce_login(user)
    return client


class Listener:
    """Reads a stream as the ASGI server does: in a task, which a browser that goes away cancels."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.events: asyncio.Queue[str | None] = asyncio.Queue()
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for part in self.answer.streaming_content:
            self.events.put_nowait(part.decode())
        self.events.put_nowait(None)

    async def next(self) -> str | None:
        """The next event, None at the end."""
        return await asyncio.wait_for(self.events.get(), 20)

    async def until(self, words: str) -> str:
        """The first event from now on with these words."""
        while words not in (event := str(await self.next())):
            assert event != "None", f"the stream ended before it said {words!r}"
        return event

    async def leave(self) -> None:
        """Close the browser."""
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


@asynccontextmanager
async def listening(client: AsyncClient, path: str) -> AsyncIterator[Listener]:
    """A stream that is listened to."""
    answer = await client.get(path)
    assert answer.status_code == 200, answer.content
    assert answer["Content-Type"] == "text/event-stream"
    assert answer["Cache-Control"] == "no-store"
    listener = Listener(answer)
    try:
        yield listener
    finally:
        await listener.leave()


def lease_stream(lease: Lease) -> str:
    """The address of a lease's stream."""
    return reverse("stream-lease", args=[lease.pk])


async def test_a_stream_begins_with_the_whole_state_and_tells_each_change(user: User, lease: Lease) -> None:
    async with listening(await browser(user), lease_stream(lease)) as events:
        first = str(await events.next())
        assert first.startswith('data: <hx-partial hx-target="#lease" hx-swap="outerMorph">')
        assert first.endswith("\n\n")
        assert "Assigned" in first
        await sync_to_async(report)(lease, "starting")
        await events.until('data-state="starting"')
        await sync_to_async(report)(lease, "ready")
        await events.until(f"ssh -p 2222 {lease.pk}@127.0.0.1")


async def test_a_stream_speaks_the_readers_language(user: User, lease: Lease) -> None:
    client = await browser(user)
    client.cookies["django_language"] = "zh-hans"
    client.cookies["tz"] = "Asia/Shanghai"
    async with listening(client, lease_stream(lease)) as events:
        await events.until("CST")


@pytest.mark.usefixtures("_impatient")
async def test_a_stream_with_nothing_to_tell_ticks(user: User, lease: Lease) -> None:
    async with listening(await browser(user), lease_stream(lease)) as events:
        await events.next()
        assert [await events.next() for _ in range(2)] == ["event: tick\ndata:\n\n"] * 2


async def test_while_a_stream_waits_it_holds_no_database_connection(user: User, lease: Lease) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("SQLite in memory is never closed.")
    async with listening(await browser(user), lease_stream(lease)) as events:
        await events.next()
        assert await sync_to_async(lambda: connection.connection is None)()


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("fate", ["sign-out", "closed account", "no longer a member", "new password"])
async def test_a_stream_ends_with_the_right_to_look(user: User, lease: Lease, fate: str) -> None:
    client = await browser(user)

    def happen() -> None:
        if fate == "closed account":
            user.is_active = False
            user.save(update_fields=["is_active"])
        elif fate == "no longer a member":
            Membership.objects.filter(user=user).delete()
        elif fate == "new password":
            user.set_password("another long password 7")
            user.save(update_fields=["password"])

    async with listening(client, lease_stream(lease)) as events:
        await events.next()
        if fate == "sign-out":
            await client.alogout()
        await sync_to_async(happen)()
        while (event := await events.next()) is not None:
            assert event == "event: tick\ndata:\n\n"


@pytest.mark.parametrize("page", ["lease", "home"])
async def test_who_is_removed_from_the_tenant_stops_seeing_at_once(
    user: User, stranger: User, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "CHECK_S", 3600)  # so it is the removal that ends it, and no look at the clock
    people: dict[User, str] = {stranger: "owner", user: "member"}
    tenant = await sync_to_async(make.make_tenant)(members=people)
    lease = await sync_to_async(make.make_lease)(tenant)
    client = await browser(user)
    await client.post(reverse("tenant-switch"), {"tenant": tenant.pk})
    async with listening(client, lease_stream(lease) if page == "lease" else reverse("stream-home")) as events:
        await events.next()
        await sync_to_async(members.remove)(tenant=tenant, user_id=user.pk, actor=Actor.of_user(stranger))
        while (event := await events.next()) is not None:
            assert event == "event: tick\ndata:\n\n"


async def test_nobody_and_strangers_are_told_nothing(user: User, stranger: User, lease: Lease) -> None:
    assert (await (await browser(None)).get(lease_stream(lease))).status_code == 404
    assert (await (await browser(None)).get(reverse("stream-home"))).status_code == 404
    assert (await (await browser(stranger)).get(lease_stream(lease))).status_code == 404
    assert (await (await browser(user)).get(reverse("stream-lease", args=["ls-nothere"]))).status_code == 404


async def test_the_list_is_told_of_a_change_of_any_of_its_leases(user: User, lease: Lease) -> None:
    async with listening(await browser(user), reverse("stream-home")) as events:
        first = str(await events.next())
        assert 'hx-target="#open-leases"' in first
        assert "Nothing is running" in first
        for event in ("starting", "ready"):
            await sync_to_async(report)(lease, event)
        await events.until("1 running")


@pytest.mark.usefixtures("_impatient")
async def test_the_catalog_tells_everyone_what_is_free(user: User, lease: Lease) -> None:
    async with listening(await browser(None), reverse("stream-offers") + "?gpu_count=1") as events:
        await events.until("1 of 2 free")
        await sync_to_async(order)(user, await sync_to_async(make.tenant_of)(user))
        await events.until("0 of 2 free")


async def test_a_ninth_stream_of_one_person_is_refused_until_one_ends(user: User, lease: Lease) -> None:
    client = await browser(user)
    path = lease_stream(lease)
    listeners = [Listener(await client.get(path)) for _ in range(streams.MOST_STREAMS)]
    for listener in listeners:
        await listener.next()
    assert (await client.get(path)).status_code == 429
    await listeners.pop().leave()
    async with listening(client, path):
        for listener in listeners:
            await listener.leave()


async def test_without_redis_a_page_stays_as_it_is(user: User, lease: Lease, settings: Any) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    assert (await (await browser(user)).get(lease_stream(lease))).status_code == 503


def test_the_wsgi_process_says_where_streams_are_served(user: User, lease: Lease) -> None:
    client = Client()
    client.force_login(user)
    answer = client.get(lease_stream(lease))
    assert answer.status_code == 421
    assert b"ASGI" in answer.content


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://elsewhere.test"},
        {"Origin": "http://ls-1.apps.testserver"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_page_from_elsewhere_may_not_listen(user: User, lease: Lease, headers: dict[str, str]) -> None:
    # case H04
    client = await browser(user)
    assert (await client.get(lease_stream(lease), headers=headers)).status_code == 403


async def test_our_own_page_may_listen(user: User, lease: Lease) -> None:
    client = await browser(user)
    own = {"Origin": "http://testserver", "Sec-Fetch-Site": "same-origin"}
    answer = await client.get(lease_stream(lease), headers=own)
    assert answer.status_code == 200
    await Listener(answer).leave()


@pytest.mark.parametrize("fate", ["closed by an operator", "deleted", "session ended"])
async def test_a_stream_ends_at_once_when_the_account_is_closed(user: User, lease: Lease, fate: str) -> None:
    # case A11; without waiting for the next look: CHECK_S is longer than a Listener waits
    client = await browser(user)

    def happen() -> None:
        if fate == "session ended":
            key = client.cookies["sessionid"].value
            row = UserSession.objects.create(user=user, session_key=key, ip="192.0.2.7", user_agent="")
            end_sessions(user=user, sessions=[row], actor=Actor.of_user(user))
        elif fate == "deleted":
            deletion.delete_account(user=user, actor=Actor.of_user(user))
        else:
            deletion.deactivate(user=user, actor=Actor.system("operator"))

    async with listening(client, lease_stream(lease)) as events:
        await events.next()
        await sync_to_async(happen)()
        async with asyncio.timeout(streams.CHECK_S - 5):
            while (event := await events.next()) is not None:
                assert "Running" not in event
