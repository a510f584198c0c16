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


@contextmanager
def _running(
    process: subprocess.Popen[bytes], ready: Callable[[], bool], log: Path, how: signal.Signals
) -> Iterator[None]:
    """Waits until the service is ready, and ends it with the signal `how` afterwards."""
    end = time.monotonic() + START_SECONDS
    try:
        while not ready():
            if process.poll() is not None or time.monotonic() > end:
                raise ServiceError(f"{process.args!r} did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)
        yield
    finally:
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


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


@contextmanager
def postgres_server() -> Iterator[str]:
    """A PostgreSQL cluster on a free loopback port, durable in nothing; yields the URL of an empty database."""
    binaries, account = _postgres_binaries(), _account()
    with tempfile.TemporaryDirectory(prefix="lessor-pg-") as directory:
        root, port = Path(directory), free_port()
        data, log = root / "data", root / "log"
        if account:
            shutil.chown(root, account, account)
        subprocess.run(
            [binaries / "initdb", "--pgdata", data, "--username", DATABASE, "--auth", "trust", "--encoding", "UTF8",
             "--locale", "C.UTF-8", "--no-sync", "--no-instructions"],
            check=True, capture_output=True, cwd=root, user=account, group=account,
        )  # fmt: skip
        settings = {
            "listen_addresses": "127.0.0.1", "port": str(port), "unix_socket_directories": str(root), "fsync": "off",
            "synchronous_commit": "off", "full_page_writes": "off", "autovacuum": "off", "max_connections": "200",
        }  # fmt: skip
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [binaries / "postgres", "-D", data, *options], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                cwd=root, start_new_session=True, user=account, group=account,
            )  # fmt: skip
        client = [str(binaries / "psql"), "-h", "127.0.0.1", "-p", str(port), "-U", DATABASE, "-d", "postgres"]

        def answers() -> bool:
            return (
                subprocess.run([*client, "-c", "select 1"], check=False, capture_output=True, cwd=root).returncode == 0
            )

        # SIGINT is PostgreSQL's fast shutdown: it does not wait for clients to leave
        with _running(process, answers, log, signal.SIGINT):
            subprocess.run([*client, "-c", f"create database {DATABASE}"], check=True, capture_output=True, cwd=root)
            yield f"postgresql://{DATABASE}@127.0.0.1:{port}/{DATABASE}"


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
