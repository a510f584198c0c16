"""The node broker: waking agents, and one ACL user per node that reaches its own queue and nothing else.

The database is the truth and a message is a wake-up, so nothing here may fail or delay a request: time limits are
short, errors are logged, and after one the broker is left alone for a few seconds. Agents pull every 30 s in any case.
"""

from __future__ import annotations

import logging
import re
import time
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

from celery import Celery
from django.conf import settings
from django.db import transaction
from kombu import Exchange, Queue
from kombu.exceptions import OperationalError
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nodes.models import Node

logger = logging.getLogger(__name__)

TASK: Final = "nodes.agent.wake"
EXPIRES_S: Final = 60
TIMEOUT_S: Final = 1
REST_S: Final = 5
# What a Celery worker on kombu's Redis transport sends without gossip, mingle, events and remote control (by MONITOR).
# Scripts run with the rights of their caller, so EVALSHA opens no other key. CLIENT SETINFO is missing, which redis-py
# bears: Redis before 7.2 does not know it and would refuse the whole rule.
# fmt: off
COMMANDS: Final = (
    "hello", "auth", "ping", "select", "brpop", "lpush", "rpush", "llen", "sadd",
    "smembers", "hset", "hget", "hdel", "zadd", "zrem", "zrange", "zrevrangebyscore", "set", "get", "del", "multi",
    "exec", "discard", "watch", "unwatch", "eval", "evalsha", "script|load", "script|exists",
)
# fmt: on
NO_ACL_RIGHTS: Final = "The broker does not let Lessor manage users (ACL): this node learns of orders by its 30 s pull."
NO_BROKER: Final = "NODE_BROKER_URL is empty: this node learns of orders by its 30 s pull."
UNKNOWN_ACL: Final = re.compile(r"unknown command\W+acl\b", re.IGNORECASE)
BROKER_ERRORS: Final = (OperationalError, RedisError, OSError)


class Rest:
    """After a failure no attempt for ``REST_S`` seconds: a dead broker delays one request and not each of them."""

    def __init__(self) -> None:
        self._until = 0.0

    def __bool__(self) -> bool:
        return time.monotonic() < self._until

    def begin(self) -> None:
        """The broker failed just now."""
        self._until = time.monotonic() + REST_S

    def end(self) -> None:
        """Forget the failure."""
        self._until = 0.0


rest = Rest()


class NoAclRightsError(Exception):
    """The broker answers, but does not let us manage users: a managed Redis, or a restricted account."""


def wake(*, node_id: str, lease_id: str = "") -> None:
    """Tell a node after commit that a lease (``""``: anything) has changed. Never raises; a rollback sends nothing."""
    transaction.on_commit(partial(_publish, node_id, lease_id))


def assert_user(node: Node) -> bool:
    """Make the node's user at the broker, or make it right again; existing connections live on.

    Returns whether the node may use the broker: False without a broker or without the right to manage users. A broker
    that does not answer counts as usable, because the user is asserted again every minute.
    """
    return assert_users([node])


def assert_users(nodes: Iterable[Node], *, gone: Iterable[str] = ()) -> bool:
    """``assert_user`` for many nodes in one round trip. ``gone``: ids of revoked nodes, whose users go."""
    if not settings.NODE_BROKER_URL:
        return False
    commands = [_set_user(node) for node in nodes if node.broker_password_digest]
    names = [f"node.{node_id}" for node_id in gone]
    try:
        existing = set(_acl([["ACL", "USERS"]])[0]) if names else set()
        _acl([*commands, *(_delete_user(name) for name in names if name in existing)])
    except NoAclRightsError:
        return False
    except BROKER_ERRORS as error:
        logger.warning("broker: users not asserted (%s)", type(error).__name__)
    return True


def remove_user(node: Node) -> None:
    """Take the node's user away and cut its connections. Never raises: a broker that is down is put right by beat."""
    if not settings.NODE_BROKER_URL:
        return
    try:
        _acl([_delete_user(node.queue)])
    except NoAclRightsError:
        return  # then there never was one
    except BROKER_ERRORS as error:
        logger.warning("broker: user %s not removed yet (%s)", node.queue, type(error).__name__)


def url_for(node: Node, password: str) -> str:
    """The address a node uses: NODE_BROKER_PUBLIC_URL with the node's own name and password."""
    parts = urlsplit(settings.NODE_BROKER_PUBLIC_URL)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, f"{quote(node.queue)}:{quote(password)}@{place}", parts.path, parts.query, ""))


def close() -> None:
    """Forget connections and failures, for tests that change the broker's address."""
    for made in (_publisher, _admin):
        made.cache_clear()
    rest.end()


@cache
def _publisher(url: str) -> Celery:
    app = Celery("lessor-wake", broker=url, set_as_current=False)
    app.conf.update(
        task_serializer="json",
        task_ignore_result=True,
        broker_pool_limit=4,
        broker_connection_timeout=TIMEOUT_S,
        broker_transport_options={
            "socket_timeout": TIMEOUT_S,
            "socket_connect_timeout": TIMEOUT_S,
            "socket_keepalive": True,
            "health_check_interval": 25,
        },
    )
    return app


@cache
def _admin(url: str) -> Redis:
    limits = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
    return Redis.from_url(url, decode_responses=True, retry=Retry(NoBackoff(), 0), **limits)


def _publish(node_id: str, lease_id: str) -> None:
    if not settings.NODE_BROKER_URL or rest:
        return
    name = f"node.{node_id}"
    queue: Any = Queue(name, Exchange(name, type="direct"), routing_key=name)
    try:
        # declare=[]: the anonymous exchange needs no binding, so a message is one LPUSH.
        _publisher(settings.NODE_BROKER_URL).send_task(
            TASK, args=[lease_id], queue=queue, declare=[], expires=EXPIRES_S, retry=False, ignore_result=True
        )
    except BROKER_ERRORS as error:
        rest.begin()
        logger.warning("broker: %s not woken for %s (%s)", name, lease_id or "everything", type(error).__name__)


def _set_user(node: Node) -> list[str]:
    name = node.queue
    keys = [
        name,
        f"{name}??[369]",  # kombu's queues of the other priorities: name, two separators, digit
        f"unacked.{name}",
        f"unacked_index.{name}",
        f"unacked_mutex.{name}",
        f"_kombu.binding.{name}",
        f"_kombu.binding_permanent.{name}",
    ]
    rules = ["reset", "on", f"#{node.broker_password_digest}", *(f"~{key}" for key in keys)]
    return ["ACL", "SETUSER", name, *rules, *(f"+{command}" for command in COMMANDS)]


def _delete_user(name: str) -> list[str]:
    return ["ACL", "DELUSER", name]  # the server cuts the user's connections with it


def _acl(commands: list[list[str]]) -> list[Any]:
    """The answers to ``commands``, in one round trip. Raises NoAclRightsError, or an error of ``BROKER_ERRORS``."""
    if not commands:
        return []
    pipe = _admin(settings.NODE_BROKER_URL).pipeline(transaction=False)
    for command in commands:
        pipe.execute_command(*command)  # type: ignore[no-untyped-call]
    answers = pipe.execute(raise_on_error=False)
    for answer in answers:
        unknown = isinstance(answer, ResponseError) and UNKNOWN_ACL.search(str(answer))
        if unknown or isinstance(answer, NoPermissionError):
            raise NoAclRightsError
        if isinstance(answer, RedisError):
            raise answer
    return answers
