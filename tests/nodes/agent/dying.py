"""An agent that kills itself at a given moment, once: `python -m tests.nodes.agent.dying run …`.

LESSOR_TEST_DIES names the moment: `before:<phase>` or `after:<phase>` of writing that phase down, or the name of a call
of the engine (`create`, `start`, `kill`, `remove`, `network_create`), after it was carried out, or `delete`, before a
lease's record is. LESSOR_TEST_DIED is a file that says that it has happened.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodes.agent.engine import DockerEngine
from nodes.agent.main import main
from nodes.agent.store import LeaseRecord, Store

MOMENT = os.environ.get("LESSOR_TEST_DIES", "")
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


if __name__ == "__main__":
    arm()
    sys.exit(main())
