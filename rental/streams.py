"""Live pages: server-sent events under /stream/, fed by Redis pub/sub. Served by the ASGI process only.

A message on a channel says that something changed, never what: the page's part is rendered again from the database, as
the person who watches may see it. While a stream waits it holds no database connection. Every 15 s, and with every
message, the person is judged again: session, account, membership. An event at least every 15 s tells the browser that
the stream lives.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth import get_user
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.template.loader import render_to_string
from django.utils import timezone, translation
from redis.asyncio import Redis
from redis.exceptions import RedisError

from portal import ids
from portal.actor import client_ip
from portal.middleware import known_zone
from portal.models import User
from portal.origins import from_elsewhere
from portal.services import current_tenant
from rental import lease_page, live, views

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Hashable

    from redis.asyncio.client import PubSub

    from rental.models import Lease

logger = logging.getLogger(__name__)

CHECK_S: Final = 15
MOST_STREAMS: Final = 8  # of one person, or of one address that is not signed in
SEVERAL_S: Final = 0.05
OFFERS_PAUSE_S: Final = 5  # the catalog changes with every lease of everybody
PLAIN: Final = "text/plain; charset=utf-8"
TICK: Final = b"event: tick\ndata:\n\n"
T = TypeVar("T")


@dataclass(frozen=True)
class Watch:
    """What a stream shows to whom: the channels that tell of changes, and two functions that run in a thread.

    ``stamp`` judges the watcher again and gives what the HTML depends on, or None when there is nothing left to see;
    ``render`` gives the messages' HTML. ``pause_s`` is how often to look where no channel tells.
    """

    owner: str
    channels: tuple[str, ...]
    stamp: Callable[[], Hashable]
    render: Callable[[], str]
    pause_s: float = 0.0


async def lease(request: HttpRequest, lease_id: str) -> HttpResponse | StreamingHttpResponse:
    """The page of one lease."""

    def found() -> Lease | None:
        user = _judge(request)
        return lease_page.visible(user).filter(pk=lease_id).first() if user else None

    def stamp() -> Hashable:
        seen = found()
        if seen is None:
            return None
        last = seen.events.order_by("-pk").values_list("pk", flat=True).first()
        return seen.state, seen.progress, last, lease_page.is_quiet(seen), lease_page.sampled_at(seen)

    def render() -> str:
        seen = found()
        facts = lease_page.facts(seen, views.person(request)) if seen else {}
        return _partial("#lease", "outerMorph", "rental/_lease.html", facts, request) if seen else ""

    return await _answer(request, lambda user: Watch(user.pk, (f"lease:{lease_id}",), stamp, render))


async def home(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """The open leases of the tenant the person works for; it ends when that is another one than at the start."""
    began: list[str] = []

    def stamp() -> Hashable:
        if _judge(request) is None or (began and current_tenant(request).pk not in began):
            return None
        opened = lease_page.open_leases(current_tenant(request))
        return tuple((row.pk, row.state, row.progress, lease_page.is_quiet(row)) for row in opened)

    def render() -> str:
        facts = views.open_facts(current_tenant(request))
        return _partial("#open-leases", "innerMorph", "rental/_open_leases.html", facts, request) + _partial(
            "#leases-sum", "outerMorph", "rental/_leases_sum.html", facts, request
        )

    def admit(user: User) -> Watch:
        began.append(current_tenant(request).pk)
        return Watch(user.pk, (f"tenant:{began[0]}",), stamp, render)

    return await _answer(request, admit)


async def offers(request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
    """The catalog, for everyone. It looks again every few seconds: nobody is told whose lease changed it."""

    def stamp() -> Hashable:
        return repr(views.catalog_facts(request)["rows"])

    def render() -> str:
        return _partial("#offers", "innerMorph", "rental/_offers.html", views.catalog_facts(request), request)

    def admit(user: User | None) -> Watch:
        owner = user.pk if user else f"ip-{client_ip(request) or 'unknown'}"
        return Watch(owner, (), stamp, render, pause_s=OFFERS_PAUSE_S)

    return await _answer(request, admit, public=True)


async def _answer(
    request: HttpRequest, admit: Callable[[Any], Watch], *, public: bool = False
) -> HttpResponse | StreamingHttpResponse:
    if request.method != "GET":
        return HttpResponse("GET is accepted.", status=405, content_type=PLAIN, headers={"Allow": "GET"})
    if from_elsewhere(request):
        return HttpResponse("Only our own pages may listen.", status=403, content_type=PLAIN)
    if not isinstance(request, ASGIRequest):
        return HttpResponse("Streams are served by the ASGI process.", status=421, content_type=PLAIN)
    watch = await _in_thread(request, lambda: _admitted(request, admit, public=public))
    if watch is None:
        return HttpResponse("There is nothing at this address.", status=404, content_type=PLAIN)
    redis = Redis.from_url(settings.REDIS_URL, decode_responses=True, socket_connect_timeout=live.TIMEOUT_S)
    place = Place(redis, watch.owner)
    try:
        free = await place.take()
    except (RedisError, OSError) as error:
        logger.warning("streams: Redis does not answer (%s)", type(error).__name__)
        return HttpResponse("Live updates are not available now.", status=503, content_type=PLAIN)
    finally:
        await redis.aclose()  # a browser may go before the first event is asked for; it connects again by itself
    if not free:
        return HttpResponse("Too many live pages are open.", status=429, content_type=PLAIN)
    answer = StreamingHttpResponse(_events(request, watch, redis, place), content_type="text/event-stream")
    answer["Cache-Control"] = "no-store"
    answer["X-Accel-Buffering"] = "no"  # nginx hands events on at once
    return answer


def _admitted(request: HttpRequest, admit: Callable[[Any], Watch], *, public: bool) -> Watch | None:
    user = _judge(request)
    if user is None and not public:
        return None
    watch = admit(user)
    return None if watch.stamp() is None else watch


class Place:
    """One of the few streams an owner may have, across all processes. It expires by itself when a process dies."""

    def __init__(self, redis: Redis, owner: str) -> None:
        self.redis = redis
        self.key = f"streams:{owner}"
        self.name = ids.new_id("st")

    async def take(self) -> bool:
        """Is there a place left?"""
        await self.redis.zremrangebyscore(self.key, 0, time.time() - 3 * CHECK_S)
        await self.keep()
        if self.name in await self.redis.zrange(self.key, 0, MOST_STREAMS - 1):  # oldest first
            return True
        await self.leave()
        return False

    async def keep(self) -> None:
        """It is in use."""
        await self.redis.zadd(self.key, {self.name: time.time()})
        await self.redis.expire(self.key, 3 * CHECK_S)

    async def leave(self) -> None:
        """It is free."""
        await self.redis.zrem(self.key, self.name)


async def _events(request: HttpRequest, watch: Watch, redis: Redis, place: Place) -> AsyncIterator[bytes]:
    """What the browser reads, until the watcher goes or may no longer look."""
    pubsub = redis.pubsub()
    try:
        if watch.channels:  # listen first, look then: a change between the two is told twice rather than never
            await pubsub.subscribe(*watch.channels)
        async for event in _changes(request, watch, pubsub, place):
            yield event
    except (RedisError, OSError) as error:
        logger.warning("streams: Redis went away (%s)", type(error).__name__)  # the browser comes back by itself
    finally:
        await asyncio.shield(_close(redis, pubsub, place))


async def _close(redis: Redis, pubsub: PubSub, place: Place) -> None:
    try:
        await pubsub.aclose()  # type: ignore[no-untyped-call]
        await place.leave()
    except (RedisError, OSError):
        logger.debug("streams: the place %s expires by itself", place.name)
    await redis.aclose()


async def _changes(request: HttpRequest, watch: Watch, pubsub: PubSub, place: Place) -> AsyncIterator[bytes]:
    shown: Hashable = None
    told = time.monotonic()
    while not _gone() and (stamp := await _in_thread(request, watch.stamp)) is not None:
        if stamp != shown:
            shown = stamp
            yield _message(await _in_thread(request, watch.render))
            told = time.monotonic()
        elif time.monotonic() - told >= CHECK_S - 1:
            yield TICK
            told = time.monotonic()
            await place.keep()
        await _wait(watch, pubsub, max(0.1, told + CHECK_S - time.monotonic()))


def _gone() -> bool:
    """Has the browser left? redis-py (8.1) loses a cancellation that comes while it sends; the task remembers it."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _wait(watch: Watch, pubsub: PubSub, longest_s: float) -> None:
    """Until something changed, at most until it is time to look again."""
    if not watch.channels:
        await asyncio.sleep(min(watch.pause_s, longest_s))
        return
    if await _next(pubsub, longest_s) is not None:
        while await _next(pubsub, SEVERAL_S) is not None:
            continue  # several changes at once are one look


async def _next(pubsub: PubSub, timeout_s: float) -> object:
    return await pubsub.get_message(ignore_subscribe_messages=True, timeout=timeout_s)


async def _in_thread(request: HttpRequest, call: Callable[[], T]) -> T:
    """Run what reads the database, in the reader's language and zone; afterwards no connection is held."""

    def run() -> T:
        zone = known_zone(request.COOKIES.get("tz", ""))
        try:
            with translation.override(getattr(request, "LANGUAGE_CODE", None)), timezone.override(zone):
                return call()
        finally:
            connections.close_all()

    return await sync_to_async(run)()


def _judge(request: HttpRequest) -> User | None:
    """Who is there now: the session is read again, so a sign-out, new password or closed account ends it."""
    key = request.session.session_key
    request.session = type(request.session)(key)
    user = get_user(request)
    request.user = user
    for cached in ("_cached_user", "_lessor_memberships"):
        request.__dict__.pop(cached, None)
    return user if isinstance(user, User) else None


def _partial(target: str, swap: str, template: str, facts: dict[str, Any], request: HttpRequest) -> str:
    html = render_to_string(template, facts, request)
    return f'<hx-partial hx-target="{target}" hx-swap="{swap}">{html}</hx-partial>'


def _message(html: str) -> bytes:
    """One unnamed event; htmx swaps it."""
    return "".join(f"data: {line}\n" for line in html.splitlines()).encode() + b"\n"
