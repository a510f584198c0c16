"""Where the agent finds its options and keeps its identity.

An option comes from the command line, else from `LESSOR_AGENT_<NAME>`, else from STATE/agent.json (written by
`enrol`), else from the defaults here. The file holds the node token and is readable by root only.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from nodes.agent.failures import AgentError

FILE = "agent.json"
MOST_HOLDERS = 8


@dataclass(frozen=True)
class Identity:
    """Who this node is for the portal. Times in seconds; `broker_url` None means pull only."""

    portal_url: str
    node_id: str
    node_name: str
    node_token: str
    broker_url: str | None
    queue: str
    heartbeat_s: float = 10
    pull_s: float = 30
    silence_s: float = 900


@dataclass(frozen=True)
class Options:
    """How the agent runs on this machine."""

    state_dir: Path = Path("/var/lib/lessor")
    run_dir: Path = Path("/run/lessor")
    docker_socket: Path = Path("/var/run/docker.sock")
    bundle_dir: Path = Path("/opt/lessor/bundle")
    workspace_image: str = ""  # of the preflight; empty = any image the engine has
    ssh_host: str = ""  # empty = the address the portal sees
    ssh_port: int = 2222  # as renters reach it
    gateway_port: int = 0  # where the gateway listens here, when a router maps the port; 0 = ssh_port
    gateway_group: str = "lessor-gateway"
    nvml: str = ""  # a libnvidia-ml.so.1 to load instead of the system's
    simulate: bool = False
    allow_plain_http: bool = False
    memlock: bool = False  # whether this node may lift RLIMIT_MEMLOCK for RDMA
    nofile: int = 20000
    holders: int = -1  # networks kept ready for leases; -1: two more than GPUs, 8 at most; 0: none
    holder_network: str = ""  # their addresses, such as 10.231.0.0/16; empty: a range that this machine does not use
    kernel_log: Path = Path("/dev/kmsg")  # where the driver tells of errors of GPUs
    cleaning_limit_s: int = 30  # how long a device may take to come clean before it is quarantined
    sample_s: int = 15  # how often it is measured what leases do
    log_level: str = "INFO"

    @property
    def local_ssh_port(self) -> int:
        """The port on 127.0.0.1 where the gateway answers."""
        return self.gateway_port or self.ssh_port

    def holder_count(self, gpus: int) -> int:
        """How many networks are kept ready on a node with so many GPUs."""
        return min(MOST_HOLDERS, gpus + 2) if self.holders < 0 else self.holders


def load_options(given: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> Options:
    """Merge command line (`None` = not given), environment and STATE/agent.json.

    Raises:
        AgentError: a value cannot be read as what it should be.
    """
    values: dict[str, object] = {}
    state_dir = Path(str(given.get("state_dir") or environ.get("LESSOR_AGENT_STATE_DIR") or Options.state_dir))
    saved = _read(state_dir).get("options", {})
    for field in fields(Options):
        for value in (given.get(field.name), environ.get(f"LESSOR_AGENT_{field.name.upper()}"), saved.get(field.name)):
            if value is not None:
                values[field.name] = _typed(field.name, value, getattr(Options, field.name))
                break
    return replace(Options(), **{**values, "state_dir": state_dir})  # type: ignore[arg-type]  # typed by _typed


def load_identity(state_dir: Path) -> Identity:
    """The identity that `enrol` stored.

    Raises:
        AgentError: this machine is not enrolled, or the file is damaged.
    """
    saved = _read(state_dir).get("identity")
    if not saved:
        raise AgentError(f"This machine is not enrolled: {state_dir / FILE} has no identity. Run `enrol` first.")
    try:
        return Identity(**saved)  # type: ignore[arg-type]  # our own file; a wrong key is a TypeError
    except TypeError as error:
        raise AgentError(f"{state_dir / FILE} is damaged: {error}") from error


def save(state_dir: Path, identity: Identity, options: Mapping[str, object]) -> None:
    """Store who we are and the options given at enrolment, readable by root only."""
    content = {"identity": asdict(identity), "options": {k: v for k, v in options.items() if v is not None}}
    write_private(state_dir / FILE, json.dumps(content, indent=1, default=str))


def write_private(path: Path, text: str, mode: int = 0o600, *, durable: bool = True) -> None:
    """Replace a file in one step, so that a reader or a crash of ours never sees half of it.

    Not `durable`: it may be lost with the machine's power, and costs no wait for the disk.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w") as stream:
        os.fchmod(stream.fileno(), mode)
        stream.write(text)
        if durable:
            stream.flush()
            os.fsync(stream.fileno())
    temporary.replace(path)


def _read(state_dir: Path) -> dict[str, dict[str, object]]:
    path = state_dir / FILE
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise AgentError(f"{path} cannot be read: {error}") from error
    return content if isinstance(content, dict) else {}


def _typed(name: str, value: object, default: object) -> object:
    text = str(value)
    if isinstance(default, bool):
        if text.lower() not in {"1", "true", "yes", "on", "0", "false", "no", "off", ""}:
            raise AgentError(f"{name} must be true or false, not {text!r}")
        return text.lower() in {"1", "true", "yes", "on"}
    if isinstance(default, int):
        if not text.isdigit():
            raise AgentError(f"{name} must be a number, not {text!r}")
        return int(text)
    return Path(text) if isinstance(default, Path) else text
