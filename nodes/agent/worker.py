"""The Celery worker that takes wake-ups from the queue `node.<id>`, on a thread inside the agent.

It only hands a lease id to the reconciler. Whatever happens to the broker, the agent lives by its pull every 30 s: a
broker that is away, restarts, or has lost this node's user is tried again with growing pauses.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

from celery import Celery
from celery.worker import WorkController, state
from kombu import Exchange, Queue

from nodes.agent.log import logger

celery_state: Any = state  # without types

TASK = "nodes.agent.wake"
FIRST_RETRY_S, LONGEST_RETRY_S = 2.0, 60.0


class _Worker(WorkController):
    on_ready: Callable[[], None] | None = None

    def on_consumer_ready(self, consumer: Any) -> None:  # celery's own signature
        if self.on_ready:
            self.on_ready()


def make_app(broker_url: str, queue: str, wake: Callable[[str], None]) -> Celery:
    """A Celery application that touches only this node's own keys on the broker."""
    # fixups: a DJANGO_SETTINGS_MODULE in the environment would make Celery load Django.
    app = Celery("lessor-agent", broker=broker_url, fixups=[], set_as_current=False)
    app.conf.update(
        task_queues=[Queue(queue, Exchange(queue), routing_key=queue)],
        task_acks_late=True,
        task_reject_on_worker_lost=False,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_cancel_long_running_tasks_on_connection_loss=True,  # ours take no time; silences a warning
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            # Celery's own names are shared by all workers of a broker; these belong to this node.
            "unacked_key": f"unacked.{queue}",
            "unacked_index_key": f"unacked_index.{queue}",
            "unacked_mutex_key": f"unacked_mutex.{queue}",
            "visibility_timeout": 300,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
            "health_check_interval": 25,
        },
    )

    def take(lease_id: str = "") -> None:
        wake(lease_id)

    app.task(name=TASK, shared=False)(take)
    return app


class WakeWorker:
    """Keeps a worker running until stopped."""

    def __init__(self, broker_url: str, queue: str, wake: Callable[[str], None]) -> None:
        self._app = make_app(broker_url, queue, wake)
        self._queue = queue
        self._wake = wake
        self._stop = threading.Event()
        self._worker: _Worker | None = None
        self._thread = threading.Thread(target=self._run, name="wake-worker", daemon=True)
        self.connected = threading.Event()

    def start(self) -> None:
        """Start listening; returns at once."""
        logging.getLogger("celery").setLevel(logging.ERROR)
        logging.getLogger("kombu").setLevel(logging.ERROR)
        celery_state.should_stop = None  # of the process, and left over from a worker that was stopped before
        self._thread.start()

    def stop(self) -> None:
        """Stop listening. A message that came meanwhile goes back to the queue, or is made up for by a pull."""
        self._stop.set()
        celery_state.should_stop = 0
        self._thread.join(10)

    def _run(self) -> None:
        delay = FIRST_RETRY_S
        while not self._stop.is_set():
            self.connected.clear()
            try:
                self._serve()
            except SystemExit:
                return  # celery's way to end a worker whose state says should_stop
            except Exception as error:  # noqa: BLE001  # whatever ends a worker, the node goes on without the broker
                # The type only: some errors repeat the broker's URL with its password.
                logger.warning("wake-ups are not received (%s); the pull goes on", type(error).__name__)
            delay = FIRST_RETRY_S if self.connected.is_set() else min(delay * 2, LONGEST_RETRY_S)
            self._stop.wait(delay)

    def _serve(self) -> None:
        worker = _Worker(
            app=self._app, hostname=f"agent@{self._queue}", pool="solo", concurrency=1, loglevel=logging.ERROR,
            without_gossip=True, without_mingle=True, without_heartbeat=True, quiet=True,
        )  # fmt: skip
        worker.on_ready = self._ready
        self._app.set_current()  # of this thread: the solo pool looks its tasks up there
        worker.start()

    def _ready(self) -> None:
        self.connected.set()
        logger.info("wake-ups are received on %s", self._queue)
        self._wake("")  # what was sent while nobody listened has expired
