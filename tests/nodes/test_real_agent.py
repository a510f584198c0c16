"""The command that operators are shown, run as it is by the real agent against the portal over HTTP."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings as django_settings

from nodes import credentials, services
from nodes.models import Node

if TYPE_CHECKING:
    from pytest_django.live_server_helper import LiveServer

    from portal.actor import Actor

pytestmark = pytest.mark.django_db(transaction=True)


def paste(command: str, state: Path) -> subprocess.CompletedProcess[str]:
    """Run the command as a shell would after sudo, with the machine's directories elsewhere."""
    sudo, python, *words = shlex.split(command)
    assert (sudo, python) == ("sudo", "python3")
    places = ["--state", str(state), "--run", str(state / "run")]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(django_settings.BASE_DIR)}
    return subprocess.run(
        [sys.executable, *words, *places], capture_output=True, text=True, check=False, env=environment, timeout=60
    )


def test_the_command_shown_to_operators_enrols_a_machine_once(
    live_server: LiveServer, settings: Any, actor: Actor, tmp_path: Path
) -> None:
    settings.PORTAL_URL = live_server.url
    node, token = services.add_node(name="ams-gpu-02", ssh_host="gpu.example.test", ssh_port=2201, actor=actor)
    command = services.enrol_command(node, token)
    done = paste(command, tmp_path / "one")
    assert done.returncode == 0, done.stderr
    assert "Enrolled as ams-gpu-02" in done.stdout
    identity = json.loads((tmp_path / "one" / "agent.json").read_text())["identity"]
    node.refresh_from_db()
    assert identity["node_id"] == node.pk
    assert node.token_digest == credentials.digest(identity["node_token"])
    assert (node.ssh_host, node.ssh_port) == ("gpu.example.test", 2201)

    again = paste(command, tmp_path / "two")
    assert again.returncode != 0
    assert "enrolment_token_invalid" in again.stderr
    assert Node.objects.get().token_digest == node.token_digest
