"""What a gateway is started with: where its files lie, where it listens, and its limits."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class GatewayConfig:
    """Settings of one gateway. Limits count per process where several run side by side."""

    run: Path
    state: Path
    host: str
    port: int
    processes: int
    user: str | None  # become this user once the port is bound; None: stay who we are
    max_connections: int  # SSH connections of one lease
    max_sessions: int  # open sessions of one lease
    max_forwards: int  # open forwards of one lease
    max_startups: int  # connections that have not logged in yet
    login_rate: float  # connections per second from one address, after a burst of ten times as many
    login_timeout_s: float
    keepalive_s: float

    @property
    def leases_file(self) -> Path:
        """The agent's list of who may come in."""
        return self.run / "gateway" / "leases.json"

    @property
    def control_socket(self) -> Path:
        """Where the agent asks what the gateway would let in."""
        return self.run / "gateway" / "control.sock"

    @property
    def execd_socket(self) -> Path:
        """Where the agent's execd listens."""
        return self.run / "execd.sock"

    @property
    def host_key_file(self) -> Path:
        """The private host key; the public one lies beside it with `.pub`."""
        return self.state / "gateway" / "ssh_host_ed25519_key"

    @property
    def audit_file(self) -> Path:
        """JSON lines: who came in, when, and what kind of thing they did."""
        return self.state / "gateway" / "audit.log"


def parse_arguments(arguments: list[str] | None = None) -> GatewayConfig:
    """Read the command line; ends the program with a message where it makes no sense."""
    parser = argparse.ArgumentParser(prog="python -m nodes.gateway", description="SSH gateway of a GPU node")
    parser.add_argument("--run", type=Path, default=Path("/run/lessor"), help="run directory (default %(default)s)")
    parser.add_argument(
        "--state", type=Path, default=Path("/var/lib/lessor"), help="state directory (default %(default)s)"
    )
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on (default %(default)s)")  # noqa: S104  the one public port
    parser.add_argument("--port", type=int, default=2222, help="port to listen on (default %(default)s)")
    parser.add_argument("--processes", type=_positive, default=1, help="processes sharing the port; one fills one core")
    parser.add_argument("--user", help="when started as root: become this user once the port is bound")
    parser.add_argument("--max-connections", type=_positive, default=64, help="SSH connections per lease")
    parser.add_argument("--max-sessions", type=_positive, default=128, help="open sessions per lease")
    parser.add_argument("--max-forwards", type=_positive, default=512, help="open forwards per lease")
    parser.add_argument("--max-startups", type=_positive, default=200, help="connections not logged in yet, in all")
    parser.add_argument(
        "--login-rate", type=_positive, default=10, help="connections a second from one address; ten times that at once"
    )
    parser.add_argument("--login-timeout", type=float, default=20.0, help="seconds to log in (default %(default)s)")
    parser.add_argument("--keepalive", type=float, default=30.0, help="seconds between keep-alives; 3 lost ones end it")
    given = parser.parse_args(arguments)
    return GatewayConfig(
        run=given.run,
        state=given.state,
        host=given.host,
        port=given.port,
        processes=given.processes,
        user=given.user,
        max_connections=given.max_connections,
        max_sessions=given.max_sessions,
        max_forwards=given.max_forwards,
        max_startups=given.max_startups,
        login_rate=given.login_rate,
        login_timeout_s=given.login_timeout,
        keepalive_s=given.keepalive,
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number
