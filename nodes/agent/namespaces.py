"""Work done inside a container's namespace, on a thread that enters it and ends right after.

Only namespaces that a single thread may enter: network and UTS (setns(2)).
"""

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

Kind = Literal["net", "uts"]
FLAGS: dict[Kind, int] = {"net": 0x40000000, "uts": 0x04000000}
Result = TypeVar("Result")

_libc = ctypes.CDLL(None, use_errno=True)


def inside(pid: int, kind: Kind, work: Callable[[], Result]) -> Result:
    """What `work` returns when run in a namespace of host process `pid`; raises what it raises.

    Raises:
        OSError: the process is gone.
    """
    results: list[Result] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            _enter(pid, kind)
            results.append(work())
        except BaseException as error:  # noqa: BLE001  # handed to the caller
            failures.append(error)

    thread = threading.Thread(target=run, name=f"in-{kind}")
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return results[0]


def _enter(pid: int, kind: Kind) -> None:
    with Path(f"/proc/{pid}/ns/{kind}").open("rb") as namespace:
        if _libc.setns(namespace.fileno(), FLAGS[kind]):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def network_of(pid: int | Literal["self"]) -> int:
    """The inode number that stands for a process's network namespace; 0 when it is gone."""
    try:
        return Path(f"/proc/{pid}/ns/net").stat().st_ino
    except OSError:
        return 0
