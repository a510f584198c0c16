"""A whole Lessor as processes: portal, nodes with fake GPUs, all reached as in production. For end-to-end tests.

The portal (gunicorn, uvicorn, Celery worker and beat, a private Redis) runs on this machine and listens on the address
that the first node sees (the others reach it too); agent and gateway run in their node's network namespace, the gateway
without privileges. Everything is ended by pid.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
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
from nodes.agent.cleaning import pids_of_container
from scripts.demolib.portal_stack import ROOT, Portal
from scripts.demolib.processes import DemoError, Processes, free_port, wait_until
from scripts.demolib.renter import Renter
from tests.rig import images
from tests.rig.engine import Engine
from tests.rig.leftovers import mounts_below

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.rig.nvml import FakeGpu

SSH_PORT = 2222
PREFIX, OWNER = "lessor-stack-", "owner"
GATEWAY_USER, GATEWAY_GROUP = "nobody", "nogroup"
PORTAL_PROGRAMS = ("web", "streams", "worker", "beat")
SECOND = ("worker", "beat")
HEARTBEAT_S, PULL_S, SAMPLE_S = 2, 5, 2
PASSWORD = "a long enough passphrase"  # of people who live for one test session


class RigPortal(Portal):
    """The demo's portal, listening where a node can reach it; without the proxy in front."""

    def __init__(
        self, processes: Processes, var: Path, host: str, database_url: str, settings: Mapping[str, str]
    ) -> None:
        self.redis_addresses = f"127.0.0.1 {host}"
        super().__init__(processes, var, free_port())
        self.host = host
        self.url = f"http://{host}:{self.port}"
        self.env |= {
            "DJANGO_SETTINGS_MODULE": "portal.settings",
            "DATABASE_URL": database_url,
            "DB_POOL": "true",
            # pages are not what is tested here: static files are served as they lie, which saves collecting them
            "LESSOR_TESTING": "true",
            "PORTAL_URL": self.url,
            "PRESENCE_URL": f"{self.url}/healthz",
            "ALLOWED_HOSTS": host,
            "TRUSTED_PROXIES": "0",
            "NODE_BROKER_PUBLIC_URL": f"redis://{host}:{self.redis_port}/1",
            "HEARTBEAT_S": str(HEARTBEAT_S),
            "PULL_S": str(PULL_S),
            "NODE_RESERVED_CPUS_MILLI": "0",
            "LEASE_WORKSPACE_BYTES": str(64 << 20),
            # idle limits of seconds, for those who ask for one
            "IDLE_TIMEOUT_MIN_S": "1",
            "IDLE_WARN_BEFORE_S": "4",
            "IDLE_SWEEP_S": "1",
            **settings,
        }

    def manage(self, *arguments: str) -> str:
        """Run a management command as an operator would, in a process of its own."""
        done = subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), *arguments],
            env={**os.environ, **self.env}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise DemoError(f"manage.py {arguments[0]}: {done.stdout}{done.stderr}")
        return done.stdout

    def prepare(self) -> None:
        """The database."""
        (self.var / "static").mkdir(exist_ok=True)
        self.manage("migrate", "--no-input", "-v0")

    def start(self) -> None:
        """web, streams, worker, beat."""
        self.start_programs(f"{self.host}:{self.port}", free_port())
        wait_until("the portal", self._answers, seconds=90, pause=0.1)

    def kill(self, *names: str) -> None:
        """End programs (all four without a name) as a machine that loses its power does."""
        for name in names or PORTAL_PROGRAMS:
            self.processes.kill(name)

    def start_second(self) -> None:
        """Another worker and another beat beside the first, as after a deployment gone wrong."""
        for name in SECOND:
            self.start_program(name, suffix="-2")

    def stop_second(self) -> None:
        """Ends `start_second`."""
        for name in SECOND:
            self.processes.stop(f"{name}-2")

    def kill_redis(self) -> None:
        """Redis goes, with all it held: cache, messages, the nodes' users."""
        self.processes.kill("redis")

    def _answers(self) -> bool:
        self.processes.check()
        try:
            return requests.get(f"{self.url}/healthz", timeout=3).ok
        except requests.RequestException:
            return False


class StackNode:
    """Agent and gateway of one engine, enrolled by the operator's one command."""

    def __init__(
        self, processes: Processes, portal: RigPortal, engine: Engine, bundle: Path, directory: Path, suffix: str = ""
    ) -> None:
        """`suffix` keeps the names of its processes apart from those of other nodes."""
        self.engine, self.portal = engine, portal
        self.state, self.run = directory / "state", directory / "run"
        self.node_id = ""
        self.agent_name, self.gateway_name = f"agent{suffix}", f"gateway{suffix}"
        self._processes = processes
        self._bundle = bundle
        self._env = {
            **engine.nvml_environment,
            "PYTHONPATH": str(ROOT),
            "LESSOR_AGENT_CLEANING_LIMIT_S": "10",
            "LESSOR_AGENT_SAMPLE_S": str(SAMPLE_S),
        }

    def start(self, name: str) -> None:
        """Enrol, start both, and wait until the portal sells the node."""
        for directory in (self.run, self.state):
            directory.mkdir(exist_ok=True)
        self.start_gateway()
        self.enrol(name)
        self.start_agent()

    def enrol(self, name: str) -> None:
        """Become a node of this name, whatever the machine was before."""
        made = json.loads(self.portal.manage("add_node", name, "--json"))
        self.node_id = made["node_id"]
        self._enrol(made["command"])

    def start_gateway(self) -> None:
        """Start the SSH gateway, as a service manager would."""
        self.run.mkdir(exist_ok=True)
        command = [
            sys.executable, "-m", "nodes.gateway", *self._places(), "--port", str(SSH_PORT), "--user", GATEWAY_USER,
        ]  # fmt: skip
        socket = self.run / "gateway" / "control.sock"
        socket.unlink(missing_ok=True)  # of one that was killed: it must not be taken for this one
        self._processes.start(self.gateway_name, self.engine.nsenter(*command), self._env)
        wait_until("the SSH gateway", lambda: self._running() and socket.exists(), seconds=60)

    def _enrol(self, command: str) -> None:
        """The command as it is shown, with this rig's places in it instead of a real machine's."""
        words = shlex.split(command)
        if words[:2] != ["sudo", "python3"]:
            raise DemoError(f"not the enrolment command that was expected: {words[:2]}")
        own = [
            "--docker-socket", str(self.engine.socket), "--bundle", str(self._bundle), "--allow-plain-http",
            "--gateway-group", GATEWAY_GROUP, "--nofile", "4096", "--workspace-image", images.WORKSPACE,
        ]  # fmt: skip
        done = subprocess.run(
            self.engine.nsenter(sys.executable, *words[2:], *self._places(), *own),
            env={**os.environ, **self._env}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise DemoError(f"The node could not be enrolled:\n{done.stdout}{done.stderr}")

    def start_agent(self, *, year: str = "") -> None:
        """Start the agent, as a service manager would; with a `year`, its wall clock is in that one."""
        # Only the tests' own entry knows how to believe a wrong clock.
        command = self.agent_command("tests.nodes.agent.unlucky" if year else "nodes.agent")
        self.agent = self._processes.start(self.agent_name, command, self.environment() | {"LESSOR_TEST_YEAR": year})

    def agent_command(self, module: str = "nodes.agent") -> list[str]:
        """What starts this node's agent."""
        return self.engine.nsenter(sys.executable, "-m", module, "run", *self._places())

    def environment(self) -> dict[str, str]:
        """What the node's programs need beside the environment of the tests."""
        return dict(self._env)

    def stop_agent(self) -> None:
        """End it in an orderly way."""
        self._processes.stop(self.agent_name)

    def kill_agent(self) -> None:
        """SIGKILL."""
        self._processes.kill(self.agent_name)

    def kill_gateway(self) -> None:
        """SIGKILL."""
        self._processes.kill(self.gateway_name)

    def cut(self) -> None:
        """From now on no packet leaves or reaches the machine, and nobody is told."""
        self._cut("-I")

    def join(self) -> None:
        """Ends `cut`."""
        self._cut("-D")

    def _cut(self, how: str) -> None:
        for chain, side in (("OUTPUT", "-o"), ("INPUT", "-i")):
            subprocess.run(
                self.engine.nsenter("iptables", "-w", how, chain, side, "eth0", "-j", "DROP"),
                check=True,
            )  # fmt: skip

    def containers(self) -> list[tuple[str, str]]:
        """``[(lease id, state)]`` of every lease's container on the engine, in order of lease ids."""
        shown = self.engine.docker(
            "ps", "-a", "--filter", "label=lessor.role=workspace", "--format",
            '{{.Label "lessor.lease"}} {{.State}}',
        ).stdout  # fmt: skip
        return sorted((line.split()[0], line.split()[1]) for line in shown.splitlines())

    @contextmanager
    def agent_frozen(self) -> Iterator[None]:
        """The agent neither asks nor answers meanwhile."""
        self.agent.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.agent.send_signal(signal.SIGCONT)

    def _places(self) -> list[str]:
        return ["--state", str(self.state), "--run", str(self.run)]

    def _running(self) -> bool:
        self._processes.check()
        return True

    def iptables(self) -> list[str]:
        """The node's filter and NAT rules."""
        tables = ("filter", "nat")
        return [
            line
            for table in tables
            for line in _output(*self.engine.nsenter("iptables-save", "-t", table)).splitlines()
            if line.startswith("-A")
        ]

    def left_of(self, lease_id: str, container_id: str = "") -> dict[str, list[str]]:
        """What is on the machine of a lease (and its container) now; all lists empty when nothing is left."""
        docker, label = self.engine.docker, f"label=lessor.lease={lease_id}"
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        loops = _output("losetup", "--list", "--noheadings", "-O", "BACK-FILE").splitlines()
        here = f"{self.state}/"
        return {
            "containers": docker("ps", "-aq", "--filter", label).stdout.split(),
            "processes": [str(pid) for pid in pids_of_container(container_id)] if container_id else [],
            "networks": docker("network", "ls", "-q", "--filter", label).stdout.split(),
            "mounts": [line for line in mounts if here in line and lease_id in line],
            "loops": [line for line in loops if here in line and lease_id in line],
            "files": [str(path) for path in self.state.rglob(f"*{lease_id}*")],
            "keys": [lease_id] if lease_id in (self.run / "gateway" / "leases.json").read_text() else [],
            "rules": [rule for rule in self.iptables() if lease_id in rule],
        }


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
        self._settings = settings or {}
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
        node = StackNode(self.processes, self.portal, engine, self._bundle, directory, suffix)
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


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
