"""A whole Lessor as processes: portal, nodes with fake GPUs, all reached as in production. For end-to-end tests.

The portal (stack_portal.py) runs on this machine and listens on the address that the first node sees (the others reach
it too); agent and gateway (stack_node.py) run in their node's network namespace. Everything is ended by pid. Here is
what holds them together: start and end, the people who use them, and what the fleet looks like from outside.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import celery
import psycopg
import redis
import requests

from nodes import broker
from scripts.demolib.processes import DemoError, Processes, wait_until
from scripts.demolib.renter import Renter
from tests.rig import images
from tests.rig.engine import Engine
from tests.rig.leftovers import mounts_below
from tests.rig.stack_node import StackNode
from tests.rig.stack_portal import RigPortal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.rig.nvml import FakeGpu

PREFIX, OWNER = "lessor-stack-", "owner"
HEARTBEAT_S, PULL_S, SAMPLE_S = 2, 5, 2  # measurements set the real ones
PASSWORD = "a long enough passphrase"  # of people who live for one test session


class Stack:
    """Portal and nodes; `node` and `engine` are the first. A context manager that leaves nothing behind."""

    def __init__(
        self,
        gpus: Sequence[FakeGpu],
        bundle: Path,
        database_url: str | None = None,
        *,
        more_nodes: Sequence[Sequence[FakeGpu]] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Without `database_url` the database is SQLite. `more_nodes` are the GPUs of further nodes."""
        sweep()
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX))  # short: socket paths have a limit
        self.directory.chmod(0o755)  # the gateway's user looks for its sockets below
        (self.directory / OWNER).write_text(str(os.getpid()))
        self._gpus, self._bundle = [gpus, *more_nodes], bundle
        self._settings = {"HEARTBEAT_S": str(HEARTBEAT_S), "PULL_S": str(PULL_S), **(settings or {})}
        self.database_url = database_url or f"sqlite:///{self.directory}/lessor.sqlite3"
        self._exits = ExitStack()
        self._people = 0

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        self._exits.callback(shutil.rmtree, self.directory)
        # The first node's containers outlive its engine, as operators are told to have it; the others' do not.
        engines = [
            self._exits.enter_context(Engine(gpus, {"live-restore": not number}))
            for number, gpus in enumerate(self._gpus)
        ]
        self.engine = engines[0]
        self._exits.callback(_unmount_below, self.directory)
        self.processes = Processes(self.directory)
        self._exits.callback(self.processes.stop_all)
        self.portal = RigPortal(self.processes, self.directory, self.engine.host_ip, self.database_url, self._settings)
        self.portal.start_redis()
        with ThreadPoolExecutor() as pool:
            loaded = [pool.submit(add, e) for e in engines for add in (images.add_scratch, images.add_workspace)]
            self.portal.prepare()
            for load in loaded:
                load.result()
        self.portal.start()
        self.nodes = [self._add_node(engine, number) for number, engine in enumerate(engines, start=1)]
        self.node = self.nodes[0]
        gpus = [gpu for gpus in self._gpus for gpu in gpus]
        for model in sorted({gpu.name for gpu in gpus}):
            self.portal.manage("set_price", model, "1.66")
        self.wait("the nodes' preflight", lambda: self.free_count() == len(gpus))

    def _add_node(self, engine: Engine, number: int) -> StackNode:
        suffix = "" if number == 1 else f"-{number}"
        directory = self.directory / f"node{suffix}"
        directory.mkdir(mode=0o755)
        node = StackNode(self.processes, self.portal, engine, self._bundle, directory, suffix=suffix, sample_s=SAMPLE_S)
        node.start(f"rig-{number}")
        return node

    def close(self) -> None:
        """End every process, in the opposite order of the start, and remove what is left on disk."""
        self._exits.close()

    def sells(self) -> bool:
        """Whether a GPU is free in the catalog."""
        return any(offer["free_count"] for offer in self.offers())

    def free_count(self) -> int:
        """How many GPUs the catalog has free."""
        return sum(offer["free_count"] for offer in self.offers())

    def offers(self) -> list[dict[str, Any]]:
        """The public catalog."""
        found: list[dict[str, Any]] = requests.get(f"{self.portal.url}/api/v1/offers", timeout=20).json()["results"]
        return found

    def redis(self) -> redis.Redis:
        """A client of the nodes' broker, with every right."""
        return redis.Redis.from_url(self.portal.env["NODE_BROKER_URL"], decode_responses=True)

    def wake(self, node: StackNode, lease_id: str) -> None:
        """One wake-up message more, as the portal sends it."""
        app = celery.Celery(broker=self.portal.env["NODE_BROKER_URL"], set_as_current=False)
        with app.connection_for_write() as connection:
            app.send_task(broker.TASK, args=[lease_id], queue=f"node.{node.node_id}", expires=60, connection=connection)

    def free(self, gpu_model: str) -> int:
        """How many GPUs of a model the catalog has free."""
        return sum(offer["free_count"] for offer in self.offers() if offer["gpu_model"] == gpu_model)

    def wait(self, what: str, true: Any, *, seconds: float = 60) -> None:
        """Until ``true()``; a process that has ended meanwhile is named, and a timeout shows the agent's last words."""

        def holds() -> bool:
            self.processes.check()
            return bool(true())

        try:
            wait_until(what, holds, seconds=seconds, pause=0.1)
        except DemoError as error:
            raise DemoError(f"{error}\nagent:\n{self.log('agent')}\nweb:\n{self.log('web')}") from None

    def log(self, name: str, lines: int = 25) -> str:
        """The end of a process's log."""
        return "\n".join((self.processes.logs / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])

    def renter(self, name: str, *, money: str = "50.00") -> Renter:
        """Somebody who has signed up, has a key, a token and money on the account."""
        self._people += 1
        address = f"{name}-{self._people}@example.com"
        renter = Renter(self.portal.url, self.portal.var / "mail", self.directory / f"renter-{self._people}")
        renter.sign_up(address, PASSWORD)
        renter.add_key()
        renter.create_token()
        self.portal.manage("top_up", address, money, "--reference", f"rig {address}")
        return renter

    def operator(self) -> Renter:
        """Somebody in the browser who runs the fleet."""
        record = self.directory / "operator_password"
        record.write_text(PASSWORD)
        self.portal.manage("ensure_operator", "operator@example.com", "--password-file", str(record))
        operator = Renter(self.portal.url, self.portal.var / "mail", self.directory / "operator")
        operator.sign_in("operator@example.com", PASSWORD)
        return operator

    def query(self, sql: str, *values: str) -> list[tuple[Any, ...]]:
        """Rows of the portal's database, read past the portal; `?` stands for a value."""
        if self.database_url.startswith("sqlite"):
            with closing(sqlite3.connect(self.database_url.removeprefix("sqlite:///"))) as file:
                return file.execute(sql, values).fetchall()
        with psycopg.connect(self.database_url) as connection:
            return connection.execute(sql.replace("?", "%s").encode(), values).fetchall()

    def devices_in_database(self, lease_id: str) -> list[str]:
        """UUIDs that the database has allocated to a lease now, sorted."""
        rows = self.query(
            "select distinct g.uuid from rental_allocation a join nodes_gpuslot s on s.id = a.slot_id"
            " join nodes_gpu g on g.id = s.gpu_id where a.lease_id = ? and a.released_at is null",
            lease_id,
        )
        return sorted(uuid for (uuid,) in rows)


@contextmanager
def postgres_database(server_url: str) -> Iterator[str]:
    """A database of its own on a PostgreSQL server; yields its URL."""
    name = f"lessor_stack_{os.getpid()}"
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f"create database {name}".encode())
        try:
            yield f"{server_url.rpartition('/')[0]}/{name}"
        finally:
            connection.execute(f"drop database {name} with (force)".encode())


def sweep() -> None:
    """End and remove the stacks of test runs that were killed."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        owner = directory / OWNER
        if owner.exists() and not Path(f"/proc/{owner.read_text()}").exists():
            Processes(directory).end_leftovers()
            _unmount_below(directory)
            shutil.rmtree(directory, ignore_errors=True)


def _unmount_below(directory: Path) -> None:
    # volumes of leases that were left running; the engine's own mounts are elsewhere
    for point in mounts_below(directory):
        subprocess.run(["umount", "--lazy", point], check=False)
