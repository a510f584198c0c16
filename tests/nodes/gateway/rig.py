"""A node as the gateway sees one: a real engine, containers with the SSH bundle, execd, and a gateway without rights.

The agent's part is played by a dictionary: `leases` says which container a lease runs in, `admit` writes leases.json.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nodes.agent.execd import Execd, RunningContainer
from tests.rig import terminal
from tests.rig.engine import Engine

ROOT = Path(__file__).resolve().parents[3]
GATEWAY_USER = "nobody"
GATEWAY_GROUP = "nogroup"
CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "SETUID", "SETGID", "KILL", "NET_BIND_SERVICE"]


def wait_until(condition: Callable[[], Any], what: str, seconds: float = 15.0) -> Any:
    """Return the condition's first true value; fail with `what` where none comes."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come true within {seconds:.0f} s")
        time.sleep(0.02)
    return value


def build_bundle() -> Path:
    """The SSH bundle that the node mounts into every container."""
    done = subprocess.run([str(ROOT / "deploy/bundle/build")], check=True, capture_output=True, text=True)
    return Path(done.stdout.strip().splitlines()[-1]).resolve()


def _program_files(*programs: str) -> dict[str, Path]:
    """Some of this machine's programs with the libraries they need, by their path in the image."""
    files: dict[str, Path] = {}
    for program in programs:
        path = shutil.which(program)
        assert path, f"{program} is missing on this machine"
        files[f"bin/{program}"] = Path(path)
        linked = subprocess.run(["ldd", path], check=True, capture_output=True, text=True).stdout
        for word in linked.split():
            if word.startswith("/"):
                files[word.lstrip("/")] = Path(word).resolve()
    return files


def image_archive(files: dict[str, Path], texts: dict[str, str]) -> bytes:
    """A root file system as a tar file, for `docker import`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for directory, mode in (("tmp", 0o1777), ("root", 0o700), ("home", 0o755), ("home/ada", 0o777), ("etc", 0o755)):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            archive.addfile(entry)
        for name, path in files.items():
            data = path.read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755
            archive.addfile(entry, io.BytesIO(data))
        for name, text in texts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def import_image(engine: Engine, name: str, archive: bytes, *changes: str) -> None:
    """Make an image of a root file system."""
    options = [word for change in changes for word in ("--change", change)]
    subprocess.run(
        ["docker", "import", *options, "-", name],
        env=os.environ | {"DOCKER_HOST": engine.docker_host},
        input=archive,
        check=True,
        capture_output=True,
    )


def make_images(engine: Engine) -> None:
    """`distro`: bash, a profile that resets PATH, two users. `empty`: from scratch, nothing at all."""
    passwd = "root:x:0:0:root:/root:/bin/bash\nada:x:1000:1000::/home/ada:/bin/bash\n"
    profile = "PATH=/usr/bin:/bin\nexport PATH\n"
    # found only by the image's own PATH
    tool = "#!/bin/bash\necho tool of the image\n"
    files = _program_files(
        "bash", "stty", "sleep", "cat", "ls", "nohup", "setsid", "sha256sum", "tty", "mkdir", "rm", "dd"
    )
    archive = image_archive(files | {"bin/sh": files["bin/bash"]}, {"etc/passwd": passwd, "etc/profile": profile})
    archive = _with_tool(archive, tool)
    path = 'ENV PATH="/opt/tool/bin:/usr/bin:/bin"'
    import_image(engine, "distro", archive, path, "ENV FROM_IMAGE=yes")
    import_image(engine, "distro-ada", archive, path, "USER ada")
    empty = io.BytesIO()
    with tarfile.open(fileobj=empty, mode="w"):
        pass
    import_image(engine, "empty", empty.getvalue())


def _with_tool(archive: bytes, text: str) -> bytes:
    buffer = io.BytesIO(archive)
    with tarfile.open(fileobj=buffer, mode="a") as extended:
        entry = tarfile.TarInfo("opt/tool/bin/tool")
        entry.size, entry.mode = len(text), 0o755
        extended.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


@dataclass
class Lease:
    """A container of the rig, by its lease id."""

    id: str
    container_id: str
    pid: int

    def processes(self, mark: str) -> list[int]:
        """Host pids of the container's processes whose command line holds `mark`."""
        namespace = Path(f"/proc/{self.pid}/ns/pid").readlink()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                if (
                    mark in (entry / "cmdline").read_text().replace("\0", " ")
                    and (entry / "ns/pid").readlink() == namespace
                ):
                    found.append(int(entry.name))
        return found


class Node:
    """Execd and a gateway on one engine. `ssh` runs the real OpenSSH client against it."""

    def __init__(self, engine: Engine, bundle: Path, directory: Path) -> None:
        self.engine = engine
        self.directory = directory
        self._bundle = bundle
        self.run = directory / "run"
        self.state = directory / "state"
        self.keys = directory / "keys"
        self.leases: dict[str, RunningContainer] = {}
        self.admitted: dict[str, dict[str, Any]] = {}
        self.execd: Execd | None = None
        self.gateway: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        (self.run / "gateway").mkdir(parents=True)
        self.keys.mkdir(mode=0o700)
        self.state.mkdir()
        shutil.chown(self.run / "gateway", group=GATEWAY_GROUP)
        (self.run / "gateway").chmod(0o1770)
        self.make_key("ed25519", "ed25519")

    # -- parts ---------------------------------------------------------------------------------------------------------

    def start_execd(self) -> None:
        self.execd = Execd(
            socket_path=self.run / "execd.sock",
            docker_socket=self.engine.socket,
            lookup=self.leases.get,
            group=GATEWAY_GROUP,
        )
        self.execd.start()

    def stop_execd(self) -> None:
        if self.execd is not None:
            self.execd.stop()
        self.execd = None

    def all_sessions_are_held(self) -> bool:
        """Whether execd is up and knows of no session without a gateway."""
        keeper = getattr(self.execd, "_keeper", None)
        return keeper is not None and all(session.holder for session in keeper.sessions.values())

    def start_gateway(self, *options: str) -> None:
        with (self.directory / "gateway.log").open("ab") as log:
            self.gateway = subprocess.Popen(
                [
                    sys.executable, "-W", "error", "-m", "nodes.gateway",
                    "--run", str(self.run), "--state", str(self.state),
                    "--host", "127.0.0.1", "--port", str(self.port), "--user", GATEWAY_USER, *options,
                ],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        wait_until((self.run / "gateway/control.sock").exists, f"start of the gateway\n{self.gateway_log()}")
        host_key = wait_until(lambda: self.ask_gateway("nobody"), "the gateway's control socket")["host_key"]
        (self.directory / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {host_key}\n")

    def stop_gateway(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.gateway is not None:
            self.gateway.send_signal(number)
            self.gateway.wait(10)
            (self.run / "gateway/control.sock").unlink(missing_ok=True)
        self.gateway = None

    def gateway_log(self) -> str:
        path = self.directory / "gateway.log"
        return path.read_text() if path.exists() else ""

    def ask_gateway(self, lease_id: str) -> dict[str, Any]:
        return self.control("keys", lease=lease_id)

    def control(self, operation: str, **facts: Any) -> dict[str, Any]:
        """What the gateway answers on its control socket; empty while nobody listens there."""
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
            connection.connect(str(self.run / "gateway/control.sock"))
            connection.sendall(json.dumps({"op": operation, **facts}).encode() + b"\n")
            answer: dict[str, Any] = json.loads(connection.makefile().readline())
            return answer
        return {}

    def audit(self, event: str | None = None) -> list[dict[str, Any]]:
        path = self.state / "gateway/audit.log"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if event is None or line["event"] == event]

    # -- leases --------------------------------------------------------------------------------------------------------

    def make_lease(self, lease_id: str, image: str, *options: str, admit: bool = True) -> Lease:
        workspace = self.directory / f"workspace-{lease_id}"
        workspace.mkdir(exist_ok=True)
        workspace.chmod(0o777)
        capabilities = [word for name in CAPABILITIES for word in ("--cap-add", name)]
        container_id = self.engine.docker(
            "run", "--detach", "--init", "--name", lease_id, "--cap-drop", "ALL", *capabilities,
            "--security-opt", "no-new-privileges", "--pids-limit", "512", "--volume", f"{self._bundle}:/.lease:ro",
            "--volume", f"{workspace}:/workspace", "--env", "NVIDIA_VISIBLE_DEVICES=GPU-test", *options,
            image, "/.lease/bin/busybox", "sleep", "1000000",
        ).stdout.strip()  # fmt: skip
        pid = int(self.engine.docker("inspect", "--format", "{{.State.Pid}}", container_id).stdout)
        self.leases[lease_id] = RunningContainer(lease_id, container_id, pid)
        if admit:
            self.admit(lease_id, "ed25519")
        return Lease(lease_id, container_id, pid)

    def make_key(self, name: str, kind: str, *options: str) -> str:
        path = self.keys / name
        subprocess.run(["ssh-keygen", "-q", "-t", kind, *options, "-N", "", "-f", str(path)], check=True)
        return path.with_suffix(".pub").read_text().strip()

    def public(self, name: str) -> str:
        return (self.keys / f"{name}.pub").read_text().strip()

    def admit(self, lease_id: str, *names: str, probe: str | None = None, authority: str | None = None) -> None:
        self.admitted[lease_id] = {
            "keys": [self.public(name) for name in names],
            "probe_key": self.public(probe) if probe else None,
            "ca": [self.public(authority)] if authority else [],
        }
        self.write_leases()

    def write_leases(self) -> None:
        path = self.run / "gateway/leases.json"
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps({"leases": self.admitted}))
        shutil.chown(draft, group=GATEWAY_GROUP)
        draft.chmod(0o640)
        draft.replace(path)

    # -- the renter's side ---------------------------------------------------------------------------------------------

    def options(self, key: str = "ed25519") -> list[str]:
        return [
            "-F", "none", "-o", "StrictHostKeyChecking=yes", "-o", f"UserKnownHostsFile={self.directory}/known_hosts",
            "-o", "IdentitiesOnly=yes", "-o", "ConnectTimeout=15", "-i", str(self.keys / key),
        ]  # fmt: skip

    def command(self, lease_id: str, *words: str, key: str = "ed25519", options: tuple[str, ...] = ()) -> list[str]:
        return [
            "ssh", *self.options(key), "-p", str(self.port), *options, f"{lease_id}@127.0.0.1", *words
        ]  # fmt: skip

    def ssh(
        self,
        lease_id: str,
        *words: str,
        key: str = "ed25519",
        options: tuple[str, ...] = (),
        stdin: bytes = b"",
    ) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self.command(lease_id, *words, key=key, options=options),
            input=stdin, capture_output=True, check=False, timeout=90, env=client_environment(),
        )  # fmt: skip

    def copy(self, program: str, *words: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [program, *self.options(), "-P", str(self.port), *words],
            capture_output=True, check=False, timeout=90, env=client_environment(),
        )  # fmt: skip

    def rsync(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        shell = " ".join(["ssh", *self.options(), "-p", str(self.port)])
        return subprocess.run(
            ["rsync", "-a", "-e", shell, *words],
            capture_output=True, check=False, timeout=90, env=client_environment(),
        )  # fmt: skip

    @contextlib.contextmanager
    def background(self, command: list[str], *, stderr: int = subprocess.PIPE) -> Iterator[subprocess.Popen[bytes]]:
        """A client that runs beside the test and is gone after it."""
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=client_environment(), stdin=pipe, stdout=pipe, stderr=stderr) as process:
            try:
                yield process
            finally:
                process.kill()

    def close(self) -> None:
        self.stop_gateway()
        self.stop_execd()
        for container in self.leases.values():
            self.engine.docker("rm", "--force", "--volumes", container.container_id, check=False)


def client_environment() -> dict[str, str]:
    """Without the machine's own agent and without a locale to send."""
    return {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TERM": "xterm"}


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Terminal(terminal.Terminal):
    """A shell (or command) of a lease in a terminal."""

    def __init__(
        self, node: Node, lease_id: str, *words: str, rows: int = 24, cols: int = 80, key: str = "ed25519"
    ) -> None:
        command = node.command(lease_id, *words, key=key, options=("-tt",))
        super().__init__(command, client_environment(), rows=rows, cols=cols)
