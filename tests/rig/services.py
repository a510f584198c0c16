"""A private redis-server and a private PostgreSQL, for a test session or a script; both end with their context.

As a script, `python -m tests.rig.services redis postgres` runs them until it gets SIGTERM and prints their URLs.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

START_SECONDS = 30.0
STOP_SECONDS = 15.0
POSTGRES_BINARIES = Path("/usr/lib/postgresql")
DATABASE = "lessor"


class ServiceError(RuntimeError):
    """A service is not installed or did not start; the text says which and why."""


def free_port() -> int:
    """A loopback port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _until_ready(process: subprocess.Popen[bytes], ready: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while not ready():
        if process.poll() is not None or time.monotonic() > end:
            raise ServiceError(f"{process.args!r} did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.02)


def _end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    process.send_signal(how)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _running(
    process: subprocess.Popen[bytes], ready: Callable[[], bool], log: Path, how: signal.Signals
) -> Iterator[None]:
    """Waits until the service is ready, and ends it with the signal `how` afterwards."""
    try:
        _until_ready(process, ready, log)
        yield
    finally:
        _end(process, how)


@contextmanager
def redis_server() -> Iterator[str]:
    """A redis-server on a free loopback port without persistence; yields redis://127.0.0.1:<port>/0."""
    if shutil.which("redis-server") is None:
        raise ServiceError("redis-server is not installed (apt-get install redis-server)")
    with tempfile.TemporaryDirectory(prefix="lessor-redis-") as directory:
        port, log = free_port(), Path(directory) / "log"
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--dir", directory], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        with _running(process, lambda: _listens(port), log, signal.SIGTERM):
            yield f"redis://127.0.0.1:{port}/0"


def _postgres_binaries() -> Path:
    versions = sorted(POSTGRES_BINARIES.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not versions:
        raise ServiceError("PostgreSQL is not installed (apt-get install postgresql)")
    return versions[-1].parent


def _account() -> str | None:
    """As whom PostgreSQL runs: it refuses to run as root. None for whoever runs this."""
    return None if os.geteuid() else "postgres"


class Postgres:
    """A PostgreSQL cluster on a free loopback port, made in ``root``; `url` is that of a database in it, once made."""

    def __init__(self, root: Path, *, durable: bool = False) -> None:
        """A `durable` one keeps what was committed when it is killed; the others are only fast."""
        self._root, self._port = root, free_port()
        self._binaries, self._account = _postgres_binaries(), _account()
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"postgresql://{DATABASE}@127.0.0.1:{self._port}/{DATABASE}"
        committed = "on" if durable else "off"
        settings = {
            "listen_addresses": "127.0.0.1", "port": str(self._port), "unix_socket_directories": str(root),
            "fsync": "off", "synchronous_commit": committed, "full_page_writes": "off", "autovacuum": "off",
            "max_connections": "200",
        }  # fmt: skip
        self._options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]

    def make(self) -> None:
        """The cluster's files."""
        if self._account:
            shutil.chown(self._root, self._account, self._account)
        self._run(
            "initdb", "--pgdata", str(self._root / "data"), "--username", DATABASE, "--auth", "trust",
            "--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync", "--no-instructions", check=True,
        )  # fmt: skip

    def start(self) -> None:
        """Start it (again) and wait until it answers."""
        log = self._root / "log"
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self._root / "data", *self._options], stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, cwd=self._root, start_new_session=True, user=self._account,
                group=self._account,
            )  # fmt: skip
        _until_ready(self._process, lambda: self._sql("select 1").returncode == 0, log)

    def make_database(self) -> None:
        """The database of `url`, empty."""
        self._sql(f"create database {DATABASE}", check=True)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it. SIGINT does not wait for clients to leave, SIGQUIT ends it without writing anything more."""
        if self._process is not None:
            _end(self._process, how)

    def _sql(self, sql: str, *, check: bool = False) -> subprocess.CompletedProcess[bytes]:
        place = ["-h", "127.0.0.1", "-p", str(self._port), "-U", DATABASE, "-d", "postgres"]
        return self._run("psql", *place, "-c", sql, check=check)

    def _run(self, program: str, *arguments: str, check: bool) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [self._binaries / program, *arguments], check=check, capture_output=True, cwd=self._root,
            user=self._account, group=self._account,
        )  # fmt: skip


@contextmanager
def postgres(*, durable: bool = False) -> Iterator[Postgres]:
    """A cluster with an empty database, running; it ends with the context."""
    with tempfile.TemporaryDirectory(prefix="lessor-pg-") as directory:
        server = Postgres(Path(directory), durable=durable)
        server.make()
        try:
            server.start()
            server.make_database()
            yield server
        finally:
            server.stop()


@contextmanager
def postgres_server() -> Iterator[str]:
    """A PostgreSQL of our own, durable in nothing; yields the URL of an empty database."""
    with postgres() as server:
        yield server.url


def main(names: list[str]) -> None:
    """Runs the services named and prints their settings as NAME=value lines, then `READY=1`; ends on SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        if "redis" in names:
            url = stack.enter_context(redis_server())
            sys.stdout.write(f"REDIS_URL={url}\nNODE_BROKER_URL={url}\n")
        if "postgres" in names:
            sys.stdout.write(f"POSTGRES_URL={stack.enter_context(postgres_server())}\n")
        sys.stdout.write("READY=1\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1:])
