"""The one way to start background work: after commit, ids only, never fatal.

The database is the truth and a message is a wake-up. A broker that is down must neither fail nor delay the request that
committed, so publishing has short time limits (settings) and an error here is logged: the sweeps do the work later.
"""

import logging
from functools import partial
from typing import Any

from django.db import transaction
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)


def enqueue(task: Any, *ids: str) -> None:
    """Publish ``task(*ids)`` once the current transaction has committed; nothing is sent after a rollback."""
    transaction.on_commit(partial(_publish, task, ids))


def _publish(task: Any, ids: tuple[str, ...]) -> None:
    try:
        task.apply_async(args=ids, retry=False)
    except (OperationalError, RedisError, OSError) as error:
        # A sweep will find the row: this only costs time.
        logger.warning("queue: %s%r not published (%s)", task.name, ids, type(error).__name__)
