"""System checks of the broker's settings, and ``manage.py add_node``."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from nodes import checks, services
from nodes.models import Node
from tests.nodes.agentlike import enrolment


def found(settings: Any, url: str, public: str | None = None) -> list[str | None]:
    """Ids of what the checks say about these addresses."""
    settings.NODE_BROKER_URL, settings.NODE_BROKER_PUBLIC_URL = url, url if public is None else public
    return [said.id for check in (checks.broker_urls, checks.broker_on_the_network) for said in check(None)]


@pytest.mark.parametrize(
    ("url", "public", "ids"),
    [
        ("redis://127.0.0.1:6379/0", None, []),
        ("redis://localhost", None, []),
        ("", None, []),
        ("rediss://:pw@broker.example.org:6380/0", None, []),
        ("redis://:pw@127.0.0.1/0", "rediss://broker.example.org:6380/0", []),
        ("redis://:pw@broker.example.org/0", None, ["nodes.W001"]),
        ("redis://127.0.0.1/0", "rediss://broker.example.org/0", ["nodes.W002"]),
        ("redis://127.0.0.1/0", "redis://10.0.0.5/0", ["nodes.W001", "nodes.W002"]),
        ("amqp://broker", None, ["nodes.E001", "nodes.E001"]),
        ("redis:///run/redis.sock", "redis://localhost", ["nodes.E001"]),
    ],
)
def test_a_broker_that_would_give_passwords_away_is_said_at_start(
    settings: Any, url: str, public: str | None, ids: list[str]
) -> None:
    assert found(settings, url, public) == ids


@pytest.mark.django_db
def test_the_command_prints_one_line_that_enrols() -> None:
    out = StringIO()
    call_command("add_node", "ams-gpu-02", "--site", "ams", "--json", stdout=out)
    said = json.loads(out.getvalue())
    node = Node.objects.get(pk=said["node_id"])
    assert (node.name, node.site) == ("ams-gpu-02", "ams")
    assert said["token"] in said["command"]
    assert services.enrol(payload=enrolment(said["token"]), peer_ip=None)["node_id"] == node.pk

    out = StringIO()
    call_command("add_node", "ams-gpu-03", stdout=out)
    assert "sudo python3 -m nodes.agent enrol" in out.getvalue()


@pytest.mark.django_db
def test_the_command_says_which_value_is_wrong() -> None:
    with pytest.raises(CommandError, match="name: must be 1 to 63"):
        call_command("add_node", "..", stdout=StringIO())
    with pytest.raises(CommandError, match="ssh_host"):
        call_command("add_node", "n1", "--ssh-host", "a b", stdout=StringIO())
