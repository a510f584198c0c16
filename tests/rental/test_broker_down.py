"""A broker that is down, hangs, or is fast (case I05): the order is saved in time, nothing is sent before commit."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import redis
from django.db import transaction
from django.utils import timezone

from nodes import broker
from portal import presence
from portal.actor import Actor
from rental import desired, live, services, tasks
from rental.models import Lease
from rental.states import State
from tests import make
from tests.rental.factories import a_quote, report

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from nodes.models import Node
    from portal.models import Tenant, User

pytestmark = [pytest.mark.redis, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def server(tmp_path: Path, settings: Any) -> Iterator[redis.Redis]:
    """A redis-server of this test, used as Redis and as the nodes' broker."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
    )
    settings.REDIS_URL = settings.NODE_BROKER_URL = f"redis://127.0.0.1:{port}/0"
    broker.close()
    live.close()
    client = redis.Redis(port=port)
    deadline = time.monotonic() + 10
    while True:
        with contextlib.suppress(redis.ConnectionError):
            client.ping()
            break
        assert time.monotonic() < deadline, "redis-server did not start"
    yield client
    broker.close()
    live.close()
    client.close()
    process.terminate()
    process.wait(10)


@pytest.fixture
def node(db: None) -> Node:
    """Made per test: transactional tests keep nothing."""
    make.make_price()
    return make.make_node(gpus=2)


def take_order(user: User, tenant: Tenant) -> tuple[Lease, float]:
    token = a_quote(user, tenant)
    before = time.monotonic()
    lease, created = services.request_lease(tenant=tenant, actor=Actor.of_user(user), quote_token=token)
    assert created
    return lease, time.monotonic() - before


def messages(server: redis.Redis, node: Node) -> list[dict[str, Any]]:
    return [json.loads(raw) for raw in server.lrange(node.queue, 0, -1)]


def test_an_order_wakes_its_node_and_tells_who_watches(
    renter: User, tenant: Tenant, node: Node, server: redis.Redis
) -> None:
    listener: Any = server.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]  # redis' own
    listener.psubscribe("lease:*", "tenant:*")
    lease, _ = take_order(renter, tenant)
    (message,) = messages(server, node)
    assert message["headers"]["task"] == "nodes.agent.wake"
    heard: set[tuple[str, str]] = set()
    wanted = {(f"lease:{lease.pk}", "assigned"), (f"tenant:{tenant.pk}", "assigned")}
    while not wanted <= heard:  # the test's time limit ends this
        said = listener.get_message(timeout=1)
        if said is not None:
            assert json.loads(said["data"])["lease"] == lease.pk
            heard.add((said["channel"].decode(), json.loads(said["data"])["state"]))
    listener.close()


@pytest.mark.parametrize("fault", ["down", "paused"])
def test_without_a_broker_the_order_is_saved_in_time_and_done_by_pull(
    renter: User, tenant: Tenant, node: Node, server: redis.Redis, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # case I05
    if fault == "down":
        with contextlib.suppress(redis.ConnectionError):
            server.shutdown(nosave=True)
    else:
        server.client_pause(20_000, all=True)
    lease, seconds = take_order(renter, tenant)
    assert seconds < 5  # the case's own limit
    (word,) = desired.desired_leases(node)
    assert (word["id"], word["want"]) == (lease.pk, "run")
    report(lease, "ready")
    before = time.monotonic()
    stopped = services.stop_lease(lease=lease, actor=Actor.of_user(renter))
    assert time.monotonic() - before < 5
    assert stopped.state == State.STOPPING
    assert desired.desired_leases(node)[0]["want"] == "stop"
    monkeypatch.setattr(presence, "receiving_since", timezone.now)
    tasks.sweep_unanswered()  # does not fall over either


def test_nothing_is_sent_before_the_commit_nor_after_a_rollback(
    renter: User, tenant: Tenant, node: Node, server: redis.Redis
) -> None:  # case I05
    @transaction.atomic
    def order_and_fail() -> None:
        take_order(renter, tenant)
        assert messages(server, node) == []
        raise RuntimeError("the request fails after all")

    with pytest.raises(RuntimeError, match="after all"):
        order_and_fail()
    assert messages(server, node) == []
    assert not Lease.objects.exists()
    with transaction.atomic():
        take_order(renter, tenant)
        assert messages(server, node) == []
    assert len(messages(server, node)) == 1


def test_a_wake_up_that_was_lost_is_repeated_by_the_sweep(
    renter: User, tenant: Tenant, node: Node, server: redis.Redis
) -> None:  # case I05
    lease, _ = take_order(renter, tenant)
    server.flushall()
    Lease.objects.update(assigned_at=timezone.now() - timedelta(seconds=6))
    tasks.sweep_unanswered()
    (message,) = messages(server, node)
    assert lease.pk in message["headers"]["argsrepr"]
