"""The node broker, with a real redis-server and a real Celery worker that holds a node's own credentials."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction
from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from nodes import broker, credentials, services, tasks
from tests import make
from tests.nodes.agentlike import enrolment
from tests.rig.services import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pytest_django import DjangoCaptureOnCommitCallbacks

    from nodes.models import Node
    from portal.actor import Actor

pytestmark = pytest.mark.django_db

PAUSE_MS = 6_000  # longer than anything here waits
PASSWORD = "0123456789abcdef"
WORKER = """
import sys
from celery import Celery
from kombu import Exchange, Queue
url, queue = sys.argv[1:]
app = Celery("agent", broker=url)
app.conf.update(
    task_queues=[Queue(queue, Exchange(queue, type="direct"), routing_key=queue)], task_default_queue=queue,
    worker_enable_remote_control=False, worker_send_task_events=False, task_ignore_result=True, task_acks_late=True,
    worker_prefetch_multiplier=1, broker_connection_retry_on_startup=False,
    broker_transport_options={
        "unacked_key": f"unacked.{queue}", "unacked_index_key": f"unacked_index.{queue}",
        "unacked_mutex_key": f"unacked_mutex.{queue}", "visibility_timeout": 3600, "unacked_restore_interval": 1,
    },
)

@app.task(name="nodes.agent.wake")
def wake(lease):
    print(f"WOKEN {lease}", flush=True)

app.worker_main("worker -P solo -l WARNING --without-gossip --without-mingle --without-heartbeat".split())
"""


@pytest.fixture
def server(redis_server: str, settings: Any) -> Iterator[Redis]:
    """The administrator's connection to a broker that is empty before and after."""
    settings.NODE_BROKER_URL = settings.NODE_BROKER_PUBLIC_URL = redis_server
    broker.close()
    with Redis.from_url(redis_server, decode_responses=True) as admin:
        admin.flushall()
        yield admin
        until(lambda: answers(admin))
        for name in admin.acl_users():
            if name != "default":
                admin.acl_deluser(name)
        admin.flushall()


@pytest.fixture
def member(node: Node) -> Node:
    """A node with a broker password, whose user is not yet at the broker."""
    node.broker_password_digest = credentials.digest(PASSWORD)
    node.save(update_fields=["broker_password_digest"])
    return node


def as_node(node: Node) -> Redis:
    """A connection with the credentials of a node."""
    return Redis.from_url(broker.url_for(node, PASSWORD), decode_responses=True)


def until(holds: Callable[[], object], seconds: float = 20) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.02)


def answers(server: Redis) -> bool:
    """Whether a pause is over; CLIENT UNPAUSE would wait for its end like any other command."""
    try:
        return bool(server.ping())
    except RedisError:
        return False


def test_a_worker_with_a_nodes_credentials_runs_what_is_sent_to_that_node_only(
    server: Redis, member: Node, tmp_path: Path, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    assert broker.assert_user(member)
    script = tmp_path / "worker.py"
    script.write_text(textwrap.dedent(WORKER))
    server.acl_log_reset()
    output = (tmp_path / "output").open("w+")
    command = [sys.executable, str(script), broker.url_for(member, PASSWORD), member.queue]
    worker = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=tmp_path, env={})
    log = tmp_path / "output"
    try:
        until(lambda: server.smembers(f"_kombu.binding.{member.queue}"))
        with django_capture_on_commit_callbacks(execute=True):
            broker.wake(node_id="nd-another", lease_id="ls-other")
            broker.wake(node_id=member.pk, lease_id="ls-1")
            broker.wake(node_id=member.pk)
        until(lambda: log.read_text().count("WOKEN") == 2)
        until(lambda: not server.exists(f"unacked.{member.queue}"))
        for _ in range(2):
            broker.assert_user(member)
        with django_capture_on_commit_callbacks(execute=True):
            broker.wake(node_id=member.pk, lease_id="ls-2")
        until(lambda: "WOKEN ls-2" in log.read_text())
    finally:
        worker.terminate()
        worker.wait(20)
        output.close()
    text = log.read_text()
    assert "ls-other" not in text
    assert "No permissions" not in text
    assert server.acl_log() == []
    assert server.llen("node.nd-another") == 1


def test_a_node_touches_nothing_but_its_own_queue(server: Redis, member: Node) -> None:
    broker.assert_user(member)
    server.lpush("node.nd-other", "secret")
    server.hset("unacked.node.nd-other", "tag", "secret")
    mine = as_node(member)
    assert mine.lpush(member.queue, "x") == 1
    for key in ("node.nd-other", f"{member.queue}x", "unacked", "celery", "cache:1", "_kombu.binding.node.nd-other"):
        with pytest.raises(NoPermissionError):
            mine.lpush(key, "x")
        with pytest.raises(NoPermissionError):
            mine.brpop([member.queue, key], timeout=1)
    with pytest.raises(NoPermissionError):
        mine.hget("unacked.node.nd-other", "tag")
    for call in ("'hget', 'unacked.node.nd-other', 'tag'", "'lrange', 'node.nd-other', 0, -1"):
        with pytest.raises(ResponseError, match="can't"):
            mine.eval(f"return redis.call({call})", 0)
    for command in (
        "CONFIG GET *", "FLUSHALL", "FLUSHDB", "ACL WHOAMI", "ACL LIST", "MONITOR", "KEYS *", "SCAN 0", "INFO", "SAVE",
        "CLIENT LIST", "CLIENT KILL TYPE normal", "CLIENT PAUSE 1", "SHUTDOWN NOSAVE", "REPLICAOF NO ONE", "SWAPDB 0 1",
        "SUBSCRIBE /0.celery.pidbox", "PSUBSCRIBE *", "PUBLISH lease:ls-1 x", "DBSIZE", "RANDOMKEY", "SCRIPT FLUSH",
        "FUNCTION LIST", "COPY a b", f"RENAME {member.queue} a", f"MIGRATE h 1 {member.queue} 0 1", "LATENCY DOCTOR",
    ):  # fmt: skip
        with pytest.raises(NoPermissionError):
            mine.execute_command(*command.split())  # type: ignore[no-untyped-call]


def test_asserting_a_user_again_rotates_its_password_and_repairs_its_rights(server: Redis, member: Node) -> None:
    broker.assert_user(member)
    live = as_node(member)
    assert live.ping()
    server.execute_command("ACL", "SETUSER", member.queue, "+@all", "~*")  # type: ignore[no-untyped-call]
    broker.assert_user(member)
    assert live.ping(), "a connection survives"
    with pytest.raises(NoPermissionError):
        live.lpush("foreign", "x")
    member.broker_password_digest = credentials.digest("another")
    broker.assert_user(member)
    with pytest.raises(AuthenticationError):
        as_node(member).ping()


def test_revoking_a_node_cuts_its_connections_at_once(
    server: Redis, member: Node, actor: Actor, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    broker.assert_user(member)
    waiting = as_node(member)
    ended = threading.Event()

    def wait() -> None:
        try:
            waiting.brpop([member.queue], timeout=60)
        except RedisError:
            ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: any(c["user"] == member.queue for c in server.client_list()))
    with django_capture_on_commit_callbacks(execute=True):
        services.revoke(node=member, actor=actor)
    thread.join(20)
    assert ended.is_set()
    assert member.queue not in server.acl_users()


def test_the_minutely_task_makes_the_brokers_users_what_the_database_says(
    server: Redis, member: Node, actor: Actor
) -> None:
    gone = make.make_node(gpus=0, broker_password_digest=credentials.digest("x"))
    broker.assert_user(gone)
    services.revoke(node=gone, actor=actor)  # the removal after commit does not run inside this test's transaction
    assert gone.queue in server.acl_users()
    tasks.assert_broker_users()
    assert sorted(server.acl_users()) == ["default", member.queue]
    assert as_node(member).lpush(member.queue, "x")
    server.acl_deluser(member.queue)  # as after a restart without an aclfile
    tasks.assert_broker_users()
    assert as_node(member).llen(member.queue) == 1


def test_an_enrolled_node_gets_an_address_that_works(server: Redis, actor: Actor, settings: Any) -> None:
    settings.NODE_BROKER_PUBLIC_URL = settings.NODE_BROKER_URL.replace("127.0.0.1", "localhost")
    node, token = services.add_node(name="n1", actor=actor)
    url = services.enrol(payload=enrolment(token), peer_ip=None)["broker_url"]
    assert url.startswith(f"redis://node.{node.pk}:")
    assert "@localhost:" in url
    with Redis.from_url(url) as mine:
        assert mine.lpush(node.queue, "x") == 1
    node.refresh_from_db()
    assert node.broker_note == ""


def test_a_broker_without_the_right_to_manage_users_leaves_nodes_to_pull(
    server: Redis, actor: Actor, settings: Any
) -> None:
    server.execute_command("ACL", "SETUSER", "web", "on", ">pw", "~*", "&*", "+@all", "-@admin")  # type: ignore[no-untyped-call]
    settings.NODE_BROKER_URL = settings.NODE_BROKER_URL.replace("//", "//web:pw@")
    node, token = services.add_node(name="n1", actor=actor)
    assert services.enrol(payload=enrolment(token), peer_ip=None)["broker_url"] is None
    node.refresh_from_db()
    assert "30 s pull" in node.broker_note
    assert broker.assert_users([node]) is False


def test_a_message_expires_and_carries_ids_only_and_none_is_sent_after_a_rollback(
    server: Redis, member: Node, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    # case I05
    with django_capture_on_commit_callbacks(execute=True):
        broker.wake(node_id=member.pk, lease_id="ls-1")
        assert server.llen(member.queue) == 0, "nothing before the commit"
        with transaction.atomic():
            broker.wake(node_id=member.pk, lease_id="ls-2")
            transaction.set_rollback(True)
    (message,) = server.lrange(member.queue, 0, -1)
    assert '"task": "nodes.agent.wake"' in message
    assert '"expires": null' not in message
    assert '"argsrepr": "[\'ls-1\']"' in message
    assert server.keys("_kombu*") == []


@pytest.mark.parametrize("how", ["down", "paused", "paused after use"])
def test_a_broker_that_does_not_answer_costs_a_request_little_and_the_next_one_nothing(
    how: str,
    server: Redis,
    member: Node,
    settings: Any,
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    # case I05
    def wake() -> float:
        start = time.monotonic()
        with django_capture_on_commit_callbacks(execute=True):
            broker.wake(node_id=member.pk, lease_id="ls-1")
        return time.monotonic() - start

    if how == "down":
        settings.NODE_BROKER_URL = f"redis://127.0.0.1:{free_port()}/0"
    if how == "paused after use":
        wake()
        assert server.llen(member.queue) == 1
    if how.startswith("paused"):
        server.client_pause(PAUSE_MS)
    assert wake() < 5
    assert broker.rest
    assert max(wake() for _ in range(50)) < 1
    if how != "down":
        until(lambda: answers(server))
        broker.rest.end()
        before = server.llen(member.queue)
        wake()
        assert server.llen(member.queue) > before, "works again by itself"


def test_enrolling_and_revoking_work_while_the_broker_is_paused(
    server: Redis, actor: Actor, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    # case I05
    node, token = services.add_node(name="n1", actor=actor)
    server.client_pause(PAUSE_MS)
    start = time.monotonic()
    url = services.enrol(payload=enrolment(token), peer_ip=None)["broker_url"]
    with django_capture_on_commit_callbacks(execute=True):
        services.revoke(node=node, actor=actor)
    assert time.monotonic() - start < 5
    assert url is not None, "the node's user is made within a minute"
