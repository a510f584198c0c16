"""What the node API keeps of SSH events, and for how long."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from nodes import ssh_events, tasks
from nodes.models import Node, SshEvent
from tests import make
from tests.nodes.agentlike import node_client

if TYPE_CHECKING:
    from pytest_django import DjangoAssertNumQueries

    from portal.models import User
    from tests.clients import ApiClient

pytestmark = pytest.mark.django_db


def event(**changes: Any) -> dict[str, Any]:
    """One login, as an agent tells it."""
    return {
        "id": str(uuid4()), "age_s": 3.2, "lease": "ls-abc", "kind": "login", "peer": "192.0.2.7", "key": "SHA256:x",
        "session": "", "detail": "", "bytes_in": 0, "bytes_out": 0, **changes,
    }  # fmt: skip


@pytest.fixture
def agent(node: Node) -> ApiClient:
    """The node's agent."""
    return node_client(make.make_node_secret(node))


def test_an_event_is_kept_with_the_moment_of_its_receipt_less_its_age(agent: ApiClient, node: Node) -> None:
    before = timezone.now()
    answer = agent.post("ssh-events", {"events": [event(age_s=100, kind="session_end", bytes_in=5, bytes_out=7)]})

    assert (answer.status_code, json.loads(answer.content)) == (200, {})
    kept = SshEvent.objects.get()
    assert (kept.node, kept.lease_ref, kept.peer, kept.key) == (node, "ls-abc", "192.0.2.7", "SHA256:x")
    assert (kept.kind, kept.bytes_in, kept.bytes_out) == ("session_end", 5, 7)
    assert before <= kept.at + timedelta(seconds=100) <= timezone.now()


def test_an_event_that_comes_twice_is_one_also_within_one_message(agent: ApiClient) -> None:
    one, other = event(), event()
    agent.post("ssh-events", {"events": [one, one]})
    agent.post("ssh-events", {"events": [one, other]})

    assert SshEvent.objects.count() == 2


def test_two_nodes_may_use_the_same_id(agent: ApiClient) -> None:
    said = {"events": [event()]}
    agent.post("ssh-events", said)
    node_client(make.make_node_secret(make.make_node(name="other"))).post("ssh-events", said)

    assert SshEvent.objects.count() == 2


def test_a_long_message_costs_few_queries(node: Node, django_assert_max_num_queries: DjangoAssertNumQueries) -> None:
    said = {"events": [event() for _ in range(200)]}
    with django_assert_max_num_queries(6):  # savepoint, known ids, at most three inserts on SQLite, release
        ssh_events.record(node=node, payload=said, now=timezone.now())
    assert SshEvent.objects.count() == 200


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", "5"), ("id", None), ("age_s", "3"), ("age_s", True), ("age_s", None), ("lease", "root"),
        ("lease", "ls-a/../b"), ("lease", ""), ("kind", ""), ("peer", "x" * 65), ("key", 5), ("bytes_in", -1),
        ("bytes_in", 1.5), ("bytes_out", 1 << 61), ("detail", 5),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named_and_nothing_is_kept(agent: ApiClient, field: str, value: Any) -> None:
    answer = agent.post("ssh-events", {"events": [event(), event(**{field: value})]})

    assert answer.status_code == 400
    assert list(json.loads(answer.content)["errors"]) == [f"events.1.{field}"]
    assert not SshEvent.objects.exists()


def test_a_message_has_at_most_200_events(agent: ApiClient) -> None:
    assert agent.post("ssh-events", {"events": [event() for _ in range(201)]}).status_code == 400
    assert agent.post("ssh-events", {}).status_code == 400


def test_what_a_newer_agent_adds_is_ignored(agent: ApiClient) -> None:
    assert agent.post("ssh-events", {"events": [event(kind="tunnel"), event(new=1)]}).status_code == 200

    assert SshEvent.objects.count() == 1


@pytest.mark.parametrize(("age", "least"), [(-5, 0), (1e300, 29), (float("inf"), 29), (10**400, 29)])
def test_an_age_that_cannot_be_is_brought_into_range(node: Node, age: float, least: int) -> None:
    now = timezone.now()
    ssh_events.record(node=node, payload={"events": [event(age_s=age)]}, now=now)

    assert (now - SshEvent.objects.get().at).days in {least, least + 1}


def test_a_nul_in_a_text_is_no_error_of_ours(agent: ApiClient) -> None:
    answers = {
        field: agent.post("ssh-events", {"events": [event(**{field: "a\0b"})]}).status_code
        for field in ("peer", "key", "session", "detail", "lease")
    }

    assert set(answers.values()) <= {200, 400}


def test_events_are_deleted_when_they_are_too_old(node: Node, settings: Any) -> None:
    settings.SSH_EVENTS_DAYS = 10
    now = timezone.now()
    ssh_events.record(node=node, payload={"events": [event(), event(age_s=11 * 86_400)]}, now=now)
    tasks.sweep_ssh_events()
    tasks.sweep_ssh_events()

    assert [(now - kept.at).days for kept in SshEvent.objects.all()] == [0]


def test_operators_look_at_them_and_change_nothing(node: Node) -> None:
    operator = make.make_user("op@example.test", operator=True, is_superuser=True)
    ssh_events.record(node=node, payload={"events": [event()]}, now=timezone.now())
    client = signed_in(operator)
    listed = client.get(reverse("admin:nodes_sshevent_changelist"), {"q": "ls-abc", "kind": "login"})

    assert "192.0.2.7" in listed.content.decode()
    page = reverse("admin:nodes_sshevent_change", args=[SshEvent.objects.get().pk])
    assert client.get(page).status_code == 200
    assert client.post(page, {"peer": "x"}).status_code == 403


def signed_in(operator: User) -> Client:
    """The operator's browser."""
    client = Client()
    client.force_login(operator)
    return client
