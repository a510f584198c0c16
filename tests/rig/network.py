"""The network of one engine, and the numbers that keep engines of several test runs on one machine apart."""

import fcntl
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RECORDS = Path("/run/lessor-rig")


class EngineError(RuntimeError):
    """The engine could not be started or stopped; the text names the log to read."""


@contextmanager
def numbers_locked() -> Iterator[None]:
    """Held while a number is taken or given back, so that nobody removes what the next owner has just made."""
    RECORDS.mkdir(exist_ok=True)
    with (RECORDS / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def remove_network(number: int) -> None:
    """Removes what `Network` has made under this number, and gives the number back. Safe to repeat."""
    with numbers_locked():
        subprocess.run(["ip", "netns", "delete", f"lessor-rig-{number}"], check=False, capture_output=True)
        subprocess.run(["ip", "link", "delete", f"lr{number}"], check=False, capture_output=True)
        (RECORDS / f"{number}.json").unlink(missing_ok=True)


class Network:
    """A network namespace joined to this machine by a pair of addresses, 10.98.x.y/30.

    Its number stands for everything the engine makes on this machine; the record of it lets `sweep` clean up.
    """

    def __init__(self, root: Path) -> None:
        with numbers_locked():
            self.number = self._free_number()
            record = {"root": str(root), "owner": os.getpid()}
            (RECORDS / f"{self.number}.json").write_text(json.dumps(record))
        try:
            self._create()
        except EngineError:
            remove_network(self.number)
            raise

    @staticmethod
    def _free_number() -> int:
        for number in range(4096):
            names = (
                RECORDS / f"{number}.json",
                Path(f"/run/netns/lessor-rig-{number}"),
                Path(f"/sys/class/net/lr{number}"),
            )
            if not any(name.exists() for name in names):
                return number
        raise EngineError("no free number for a network namespace: python -m tests.rig.engine sweep")

    def _create(self) -> None:
        self._ip("netns", "add", self.name)
        self._ip("link", "add", self.host_interface, "type", "veth", "peer", "name", self.peer)
        self._ip("link", "set", self.peer, "netns", self.name, "name", "eth0")
        self._ip("address", "add", f"{self.host_ip}/30", "dev", self.host_interface)
        self._ip("link", "set", self.host_interface, "up")
        for command in (
            ("address", "add", f"{self.ip}/30", "dev", "eth0"),
            ("link", "set", "lo", "up"),
            ("link", "set", "eth0", "up"),
            ("route", "add", "default", "via", self.host_ip),
        ):
            self._ip("-n", self.name, *command)

    @staticmethod
    def _ip(*arguments: str) -> None:
        done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
        if done.returncode:
            raise EngineError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")

    @property
    def name(self) -> str:
        """Name of the namespace, also of the engine and of its cgroup."""
        return f"lessor-rig-{self.number}"

    @property
    def host_interface(self) -> str:
        """The interface on this machine."""
        return f"lr{self.number}"

    @property
    def peer(self) -> str:
        """The other end, before it moves into the namespace and becomes eth0."""
        return f"lr{self.number}p"

    @property
    def host_ip(self) -> str:
        """This machine as the node sees it."""
        return f"10.98.{self.number >> 6}.{(self.number & 63) * 4 + 1}"

    @property
    def ip(self) -> str:
        """The node as this machine sees it."""
        return f"10.98.{self.number >> 6}.{(self.number & 63) * 4 + 2}"
