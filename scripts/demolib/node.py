"""This machine as a node: enrolment by the operator's one command, then agent and gateway."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.demolib.portal_stack import ROOT
from scripts.demolib.processes import DemoError, accepts, free_port, wait_until

if TYPE_CHECKING:
    from scripts.demolib.gpus import Gpus
    from scripts.demolib.portal_stack import Portal
    from scripts.demolib.processes import Processes

NAME = "this-machine"
GATEWAY_USER = "lessor-gateway"


class Node:
    """Agent (root) and gateway (its own user, no engine, no token) of the demo."""

    def __init__(self, processes: Processes, portal: Portal, gpus: Gpus, docker_socket: Path) -> None:
        self.processes, self.portal, self.gpus = processes, portal, gpus
        self.docker_socket = docker_socket
        # Not under var/: the gateway's user must get there, and a checkout may lie in somebody's closed home.
        self.state = Path("/var/lib/lessor-demo") / hashlib.sha256(str(portal.var).encode()).hexdigest()[:12]
        self.run = Path("/run/lessor-demo/node")
        self.node_id = ""

    def start(self) -> None:
        """Enrol once per database, then start both processes and wait until the node sells."""
        self.run.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._ensure_user()
        port = self._port()
        self.processes.start(
            "gateway",
            [sys.executable, "-m", "nodes.gateway", "--run", str(self.run), "--state", str(self.state),
             "--host", "127.0.0.1", "--port", str(port), "--user", GATEWAY_USER],
            {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        wait_until("the SSH gateway", lambda: self._alive() and accepts(port))
        self._enrol(port)
        self.processes.start(
            "agent",
            [sys.executable, "-m", "nodes.agent", "run", *self._directories(), *self._options(), *self.gpus.arguments],
            {"PYTHONPATH": str(ROOT), **self.gpus.env},
        )

    def stop(self) -> None:
        """End the agent and take its networks and firewall rules away: nothing of the node stays on this machine."""
        self.processes.stop("agent")
        subprocess.run(
            [sys.executable, "-m", "nodes.agent", "retire", *self._directories(),
             "--docker-socket", str(self.docker_socket)],
            cwd=ROOT, capture_output=True, check=False,
        )  # fmt: skip

    def _alive(self) -> bool:
        self.processes.check()
        return True

    def _directories(self) -> list[str]:
        return ["--state", str(self.state), "--run", str(self.run)]

    def _options(self) -> list[str]:
        return [
            "--docker-socket", str(self.docker_socket),
            "--bundle", str(ROOT / "var" / "bundle"),
            "--workspace-image", "lessor/workspace:1",
            "--gateway-group", GATEWAY_USER,
        ]  # fmt: skip

    def _port(self) -> int:
        """The SSH port of an earlier run while nobody else has it, so that known_hosts lines stay true."""
        record = self.state / "agent.json"
        if record.exists():
            port = int(json.loads(record.read_text()).get("options", {}).get("ssh_port") or 0)
            if port and not accepts(port):
                return port
        return 2222 if not accepts(2222) else free_port()

    def _enrol(self, port: int) -> None:
        record = self.state / "agent.json"
        known = known_nodes()
        if record.exists():
            identity = json.loads(record.read_text())
            here = identity["options"].get("ssh_port") == port
            reached = f":{self.portal.redis_port}/" in (identity["identity"]["broker_url"] or "")
            if identity["identity"]["node_id"] in known and here and reached:
                self.node_id = identity["identity"]["node_id"]
                return
        token = enrolment_token(self.portal, port)
        done = subprocess.run(
            [sys.executable, "-m", "nodes.agent", "enrol", "--portal", f"http://127.0.0.1:{self.portal.port}",
             "--token", token, "--ssh-host", "localhost", "--ssh-port", str(port),
             *self._directories()],
            cwd=ROOT, env={**os.environ, **self.gpus.env}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise DemoError(f"The node could not be enrolled:\n{done.stderr[-1500:] or done.stdout[-1500:]}")
        self.node_id = json.loads(record.read_text())["identity"]["node_id"]

    @staticmethod
    def _ensure_user() -> None:
        found = subprocess.run(["id", GATEWAY_USER], capture_output=True, check=False)
        if found.returncode:
            subprocess.run(
                [
                    "useradd",
                    "--system",
                    "--user-group",
                    "--no-create-home",
                    "--shell",
                    "/usr/sbin/nologin",
                    GATEWAY_USER,
                ],
                check=True,
                capture_output=True,
            )


def enrolment_token(portal: Portal, port: int) -> str:
    """The one-time token of this machine's row: a new row, or the one of an earlier run whose address has changed."""
    from nodes.models import Node as Row
    from nodes.services import new_enrolment_token
    from portal.actor import Actor

    row = Row.objects.filter(name=NAME, revoked_at=None).first()
    if row is not None:
        return new_enrolment_token(node=row, actor=Actor.system("demo"))
    made = json.loads(portal.manage("add_node", NAME, "--ssh-host", "localhost", "--ssh-port", str(port), "--json"))
    return str(made["token"])


def known_nodes() -> dict[str, str]:
    """``{id: name}`` of the nodes that are not revoked."""
    from nodes.models import Node as Row

    return dict(Row.objects.filter(revoked_at=None).values_list("pk", "name"))


def sells(node_id: str) -> bool:
    """Whether the node takes leases: enrolled, heard, preflight passed."""
    from nodes.models import Node as Row

    return Row.objects.selling().filter(pk=node_id).exists()
