"""Wake-ups over a real Redis: they arrive, they survive the broker, and they touch no key of another node."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import redis
from celery import Celery
from kombu import Exchange, Queue

from nodes.agent.worker import TASK, WakeWorker

QUEUE = "node.nd-test"
ACL = (
    "on", ">secret", "resetkeys", "resetchannels", f"~{QUEUE}", f"~{QUEUE}??[369]", f"~unacked.{QUEUE}",
    f"~unacked_index.{QUEUE}", f"~unacked_mutex.{QUEUE}", f"~_kombu.binding.{QUEUE}",
    f"~_kombu.binding_permanent.{QUEUE}",
    "+@all", "-@admin", "-@dangerous", "+info",
)  # fmt: skip


class Woken:
    """What the reconciler would have been told."""

    def __init__(self) -> None:
        self.leases: list[str] = []
        self._changed = threading.Condition()

    def __call__(self, lease_id: str) -> None:
        with self._changed:
            self.leases.append(lease_id)
            self._changed.notify_all()

    def wait_for(self, lease_id: str) -> None:
        """Wait until a lease was woken."""
        with self._changed:
            assert self._changed.wait_for(lambda: lease_id in self.leases, 30), self.leases


@contextmanager
def listening(url: str, woken: Woken) -> Iterator[WakeWorker]:
    worker = WakeWorker(url, QUEUE, woken)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def send(url: str, lease_id: str) -> None:
    """What the portal does."""
    with Celery("portal", broker=url, fixups=[], set_as_current=False) as app:
        app.conf.task_queues = [Queue(QUEUE, Exchange(QUEUE), routing_key=QUEUE)]
        app.send_task(TASK, [lease_id], queue=QUEUE, expires=60, ignore_result=True)


def test_a_wake_up_reaches_the_agent_and_its_start_asks_for_everything(redis_server: str) -> None:
    woken = Woken()
    with listening(redis_server, woken) as worker:
        assert worker.connected.wait(30)
        woken.wait_for("")
        send(redis_server, "ls-a")
        woken.wait_for("ls-a")


def test_a_node_needs_no_key_but_its_own(redis_server: str) -> None:
    admin: Any = redis.Redis.from_url(redis_server)
    admin.execute_command("ACL", "SETUSER", QUEUE, *ACL)
    try:
        parts = urlsplit(redis_server)
        woken = Woken()
        with listening(f"redis://{QUEUE}:secret@{parts.hostname}:{parts.port}{parts.path}", woken):
            woken.wait_for("")
            send(redis_server, "ls-b")
            woken.wait_for("ls-b")
    finally:
        admin.execute_command("ACL", "DELUSER", QUEUE)
        admin.close()


def test_the_agent_lives_without_a_broker(redis_server: str) -> None:
    woken = Woken()
    with listening("redis://127.0.0.1:1/0", woken) as worker:
        assert not worker.connected.wait(0.5)
    assert woken.leases == []


def test_wake_ups_arrive_again_after_the_connection_was_cut(redis_server: str) -> None:
    admin: Any = redis.Redis.from_url(redis_server)
    woken = Woken()
    with listening(redis_server, woken):
        woken.wait_for("")
        admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        send(redis_server, "ls-c")
        woken.wait_for("ls-c")
    admin.close()
