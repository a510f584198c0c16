"""A node of a stack: agent and gateway as processes in an engine's network namespace, the gateway without privileges.

What is done to one node belongs here (enrol, kill, cut it off, look at what is left on it); the fleet is in stack.py.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from nodes.agent.cleaning import pids_of_container
from scripts.demolib.portal_stack import ROOT
from scripts.demolib.processes import DemoError, Processes, wait_until
from tests.rig import images

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.rig.engine import Engine
    from tests.rig.stack_portal import RigPortal

SSH_PORT = 2222
GATEWAY_USER, GATEWAY_GROUP = "nobody", "nogroup"


class StackNode:
    """Agent and gateway of one engine, enrolled by the operator's one command."""

    def __init__(
        self,
        processes: Processes,
        portal: RigPortal,
        engine: Engine,
        bundle: Path,
        directory: Path,
        *,
        suffix: str,
        sample_s: int,
    ) -> None:
        """`suffix` keeps the names of its processes apart from those of other nodes; it samples every `sample_s`."""
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
            "LESSOR_AGENT_SAMPLE_S": str(sample_s),
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


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
