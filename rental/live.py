"""Tells whoever watches that a lease has changed: ids and the state on Redis channels, after commit.

Nothing depends on a message: pages poll when none comes. So this never fails or delays a request: half a second at
most, and after a failure no attempt for a few seconds.
"""

from __future__ import annotations

import json
import logging
from functools import cache, partial
from typing import Final

from django.conf import settings
from django.db import transaction
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from nodes.broker import Rest
from rental.models import Lease

logger = logging.getLogger(__name__)

TIMEOUT_S: Final = 0.5
rest = Rest()


def channels(*, lease_id: str, tenant_id: str) -> tuple[str, str]:
    """Where changes of this lease are told: its own channel, and that of its tenant."""
    return f"lease:{lease_id}", f"tenant:{tenant_id}"


def publish(lease: Lease) -> None:
    """Tell of the lease's present state once the current transaction has committed; nothing after a rollback."""
    message = json.dumps({"lease": lease.pk, "state": lease.state})
    transaction.on_commit(partial(_send, channels(lease_id=lease.pk, tenant_id=lease.tenant_id), message))


def publish_tenant(tenant_id: str) -> None:
    """Tell whoever watches anything of this tenant to look again, after commit: the tenant and its open leases."""
    opened = Lease.objects.filter(tenant_id=tenant_id).open().order_by("pk").values_list("pk", flat=True)
    names = (f"tenant:{tenant_id}", *(f"lease:{pk}" for pk in opened))
    transaction.on_commit(partial(_send, names, json.dumps({"tenant": tenant_id})))


def close() -> None:
    """Forget connections and failures, for tests that change Redis' address."""
    _client.cache_clear()
    rest.end()


@cache
def _client(url: str) -> Redis:
    return Redis.from_url(
        url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0), max_connections=16
    )


def _send(names: tuple[str, ...], message: str) -> None:
    if rest:
        return
    try:
        pipe = _client(settings.REDIS_URL).pipeline(transaction=False)
        for name in names:
            pipe.publish(name, message)
        pipe.execute()
    except (RedisError, OSError) as error:
        rest.begin()
        logger.warning("live: change not published (%s)", type(error).__name__)
