"""An agent on a bad day: `python -m tests.nodes.agent.unlucky run …` kills itself, or believes a wrong wall clock.

LESSOR_TEST_DIES names the moment: `before:<phase>` or `after:<phase>` of writing that phase down, or the name of a call
of the engine (`create`, `start`, `kill`, `remove`, `network_create`), after it was carried out, or `delete`, before a
lease's record is. LESSOR_TEST_DIED is a file that says that it has happened. LESSOR_TEST_YEAR is the year in which the
agent believes to be.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Self

from nodes.agent import heartbeat
from nodes.agent.engine import DockerEngine
from nodes.agent.main import main
from nodes.agent.store import LeaseRecord, Store

MOMENT = os.environ.get("LESSOR_TEST_DIES", "")
YEAR = os.environ.get("LESSOR_TEST_YEAR", "")
DIED = Path(os.environ.get("LESSOR_TEST_DIED", "/nonexistent"))


def die_at(moment: str) -> None:
    """Kill this process if it is that moment for the first time."""
    if moment == MOMENT and not DIED.exists():
        DIED.write_text(moment)
        os.kill(os.getpid(), signal.SIGKILL)


def _dying_save(save: Callable[[Store, LeaseRecord], None]) -> Callable[[Store, LeaseRecord], None]:
    def wrapped(store: Store, record: LeaseRecord) -> None:
        die_at(f"before:{record.phase}")
        save(store, record)
        die_at(f"after:{record.phase}")

    return wrapped


def _dying_call(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(engine: DockerEngine, target: str, *arguments: object) -> Any:
        result = call(engine, target, *arguments)
        if name == MOMENT and _is_lease(engine, target):
            die_at(name)
        return result

    return wrapped


def _is_lease(engine: DockerEngine, target: str) -> bool:
    """Whether a call speaks of a lease's container or network, and not of the preflight's or a holder's."""
    if target.startswith("lessor-ls-"):
        return "preflight" not in target
    facts = engine.inspect(target)
    return bool(facts and facts.labels.get("lessor.role") == "workspace")


def arm() -> None:
    """Put the moments into the classes."""
    Store.save = _dying_save(Store.save)  # type: ignore[method-assign, assignment]  # what this module is for
    delete = Store.delete

    def dying_delete(store: Store, lease_id: str) -> None:
        die_at("delete")
        delete(store, lease_id)

    Store.delete = dying_delete  # type: ignore[method-assign, assignment]
    for name in ("create", "start", "kill", "remove", "network_create"):
        setattr(DockerEngine, name, _dying_call(name, getattr(DockerEngine, name)))


def misset(year: int) -> None:
    """Set the wall clock, as far as the agent's own code asks for it; clocks that cannot be set go on as they do."""
    away = (year - 2026) * 365.25 * 86400
    real, real_ns = time.time, time.time_ns

    class Misset(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + timedelta(seconds=away)

    time.time = lambda: real() + away
    time.time_ns = lambda: real_ns() + int(away * 1e9)
    vars(heartbeat)["datetime"] = Misset


if __name__ == "__main__":
    if MOMENT:
        arm()
    if YEAR:
        misset(int(YEAR))
    sys.exit(main())
