"""A whole node for rig tests: agent and gateway as processes of their own in an engine's network namespace."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import asyncssh

from tests.nodes.agent.fake_portal import ENROLMENT_TOKEN, FakePortal
from tests.rig.engine import Engine, wait_until

REPOSITORY = Path(__file__).parents[3]


class RigNode:
    """Agent and gateway of one engine, reporting to a fake portal. A context manager."""

    def __init__(
        self,
        engine: Engine,
        portal: FakePortal,
        bundle: Path,
        directory: Path,
        *more: str,
        port: int = 2222,
        sells: bool = True,
    ) -> None:
        """`more` are further options of the agent, such as --simulate; `port` is the gateway's; `sells`: it should."""
        self._sells = sells
        self.engine = engine
        self.portal = portal
        self.state, self.run = directory / "state", directory / "run"
        self.key = asyncssh.generate_private_key("ssh-ed25519")
        self.lease_id = "ls-1"  # of the test that runs
        self.port = port
        self._directory = directory
        self._options = [
            "--docker-socket", str(engine.socket), "--bundle", str(bundle), "--ssh-port", str(port),
            "--ssh-host", engine.ip, "--allow-plain-http", "--nofile", "4096", *more,
        ]  # fmt: skip
        self._bad_luck: dict[str, str] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self.agent("enrol", "--portal", self.portal.url, "--token", ENROLMENT_TOKEN, *self._options)
            self.start_gateway()
            self.start_agent()
            self.portal.wait_for(lambda: any(p["ok"] == self._sells for p in self.portal.preflights), "a preflight")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for name in list(self._processes):
                self.end(name)
        finally:
            # A test that failed half-way has left its volume mounted; the engine removes everything else with itself.
            for line in Path("/proc/self/mountinfo").read_text().splitlines():
                if (point := line.split()[4]).startswith(f"{self.state}/"):
                    subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)

    @property
    def key_line(self) -> str:
        """The renter's public key."""
        return self.key.export_public_key().decode().strip()

    @property
    def container(self) -> str:
        """The name of the container, and of the network, of the test's lease."""
        return f"lessor-{self.lease_id}-1"

    def agent(self, *arguments: str) -> str:
        """Run one short command of the agent; returns what it prints."""
        done = subprocess.run(
            self._command("agent", *arguments), env=self._env(), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise AssertionError(f"agent {arguments[0]}: {done.stdout}{done.stderr}")
        return done.stdout

    def start_agent(self, *, dies: str = "", year: str = "") -> None:
        """Start the agent as a service would; `dies` and `year` make it an unlucky one, see `unlucky`."""
        self._bad_luck = {"LESSOR_TEST_DIES": dies, "LESSOR_TEST_YEAR": year} if dies or year else {}
        (self._directory / "died").unlink(missing_ok=True)
        self._start("agent", "run")

    def wait_for_death(self) -> None:
        """Wait until the agent has killed itself."""
        process = self._processes.pop("agent")
        assert process.wait(60) == -signal.SIGKILL, self.log()

    def start_gateway(self) -> None:
        """Start the SSH gateway, and wait until it has a host key."""
        self._start("gateway", "--port", str(self.port))
        public = self.state / "gateway" / "ssh_host_ed25519_key.pub"
        wait_until(public.exists, seconds=20, what=f"the gateway's start ({self.log('gateway')})")

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        """End "agent" or "gateway" with a signal."""
        process = self._processes.pop(name)
        process.send_signal(number)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"{name} did not end:\n{self.log(name)}") from None

    def log(self, name: str = "agent") -> str:
        """Everything a process has said."""
        with contextlib.suppress(FileNotFoundError):
            return (self._directory / f"{name}.log").read_text()
        return ""

    def ssh(self, lease_id: str, command: str) -> subprocess.CompletedProcess[str]:
        """A command over the real port with the OpenSSH client and the renter's key."""
        key = self._directory / "key"
        if not key.exists():
            key.write_bytes(self.key.export_private_key())
            key.chmod(0o600)
        options = ("BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR")
        flags = [part for option in options for part in ("-o", option)]
        target = ["-p", str(self.port), "-i", str(key), f"{lease_id}@{self.engine.ip}", command]
        return subprocess.run(["ssh", *flags, *target], capture_output=True, text=True, timeout=60, check=False)

    @property
    def agent_pid(self) -> int:
        """Process id of the agent (nsenter becomes it)."""
        return self._processes["agent"].pid

    def inspect(self, container: str) -> dict[str, Any]:
        """What the engine says of a container."""
        found: dict[str, Any] = json.loads(self.engine.docker("inspect", container).stdout)[0]
        return found

    def left_behind(self) -> dict[str, list[str]]:
        """What of leases is on the machine now; all lists empty when it is clean."""
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        loops = _output("losetup", "--list", "--noheadings", "-O", "BACK-FILE")
        bridges = _output(*self.engine.nsenter("ip", "-o", "link"))
        networks = self.engine.docker("network", "ls", "--filter", "name=lessor-", "--format", "{{.Name}}")
        containers = self.engine.docker("ps", "-aq", "--filter", "label=lessor.lease")
        volumes = self.engine.docker("volume", "ls", "-q")
        return {
            "containers": containers.stdout.split(),
            "networks": networks.stdout.split(),
            "engine_volumes": volumes.stdout.split(),
            "mounts": [line for line in mounts if str(self.state) in line],
            "loops": [line for line in loops.splitlines() if str(self.state) in line],
            "bridges": [line for line in bridges.splitlines() if ": lsr" in line and ": lsrh" not in line],
            "holders": [entry.name for entry in (self.state / "holders").glob("*")],
            "files": [str(p) for d in ("volumes", "leases") for p in (self.state / d).iterdir()],
        }

    def still_there(self, *, but: str = "") -> dict[str, list[str]]:
        """What of `left_behind` is not empty, `but` one of its kinds."""
        return {kind: found for kind, found in self.left_behind().items() if found and kind != but}

    @contextlib.contextmanager
    def tidy(self, lease_id: str, *, seconds: float = 20, but: str = "") -> Iterator[None]:
        """For one test: its lease has this id, and within `seconds` after it nothing is left, see `still_there`."""
        self.portal.forget()
        self.lease_id = lease_id
        yield
        wait_until(
            lambda: not self.still_there(but=but), seconds=seconds, what=f"nothing left: {self.still_there(but=but)}"
        )

    def holders(self) -> list[str]:
        """Names of this node's holders that run, taken or not."""
        label = f"label=lessor.node={self.portal.node_id}"
        role = "label=lessor.role=holder"
        return sorted(
            self.engine.docker("ps", "--filter", role, "--filter", label, "--format", "{{.Names}}").stdout.split()
        )

    def _start(self, name: str, *arguments: str) -> None:
        with (self._directory / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                self._command(name, *arguments), env=self._env(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def _command(self, name: str, *arguments: str) -> list[str]:
        places = ["--state", str(self.state), "--run", str(self.run)]
        first, *others = arguments if name == "agent" else ("", *arguments)
        module = "tests.nodes.agent.unlucky" if name == "agent" and self._bad_luck else f"nodes.{name}"
        program = [sys.executable, "-m", module, *([first] if first else []), *places, *others]
        return self.engine.nsenter(*program)

    def _env(self) -> dict[str, str]:
        own = {
            "LESSOR_AGENT_CLEANING_LIMIT_S": "3", "LESSOR_TEST_DIED": str(self._directory / "died"),
            "PYTHONPATH": str(REPOSITORY), **self._bad_luck,
        }  # fmt: skip
        return {**os.environ, **self.engine.nvml_environment, **own}


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
