"""Getting images onto the node: one pull per image whoever waits for it, two at a time, and anybody may leave.

An actor waits for its ticket together with everything else it listens to, so a stop never stands behind a pull.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from nodes.agent.engine import Engine
from nodes.agent.failures import EngineError, ImageError
from nodes.agent.log import step

PARALLEL_PULLS = 2


class Ticket:
    """One waiter's share in a pull. `on_done` is called once, from the pull's thread."""

    def __init__(self, pull: "_Pull", on_done: Callable[[], None]) -> None:
        self._pull = pull
        self.on_done = on_done

    @property
    def done(self) -> bool:
        """Whether the pull has ended, well or badly."""
        return self._pull.done.is_set()

    @property
    def progress(self) -> str:
        """How far it is, for people: "3 of 7 layers"."""
        return self._pull.progress

    def result(self) -> None:
        """Raise what the pull raised; only meaningful when `done`."""
        if self._pull.error:
            raise self._pull.error

    def cancel(self) -> None:
        """Leave; the pull itself is given up when nobody waits for it any more."""
        self._pull.leave(self)


class _Pull:
    def __init__(self, image: str) -> None:
        self.image = image
        self.done = threading.Event()
        self.cancelled = threading.Event()
        self.error: EngineError | None = None
        self.progress = ""
        self.tickets: list[Ticket] = []
        self.lock = threading.Lock()

    def note(self, progress: str) -> None:
        self.progress = progress

    def leave(self, ticket: Ticket) -> None:
        with self.lock:
            if ticket in self.tickets:
                self.tickets.remove(ticket)
            if not self.tickets:
                self.cancelled.set()

    def join(self, on_done: Callable[[], None]) -> Ticket | None:
        """A ticket, or None when this pull is over or given up and a new one is needed."""
        with self.lock:
            if self.cancelled.is_set() or self.done.is_set():
                return None
            ticket = Ticket(self, on_done)
            self.tickets.append(ticket)
            return ticket

    def finish(self, error: EngineError | None) -> None:
        with self.lock:
            self.error = error
            self.done.set()
            waiting = list(self.tickets)
        for ticket in waiting:
            ticket.on_done()


class ImagePool:
    """The pulls of one node."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._threads = ThreadPoolExecutor(PARALLEL_PULLS, thread_name_prefix="pull")
        self._pulls: dict[str, _Pull] = {}
        self._lock = threading.Lock()

    def pull(self, image: str, on_done: Callable[[], None]) -> Ticket:
        """Start pulling an image, or join the pull that is under way."""
        with self._lock:
            running = self._pulls.get(image)
            if running and (ticket := running.join(on_done)):
                return ticket
            pull = self._pulls[image] = _Pull(image)
            ticket = Ticket(pull, on_done)
            pull.tickets.append(ticket)
            self._threads.submit(self._run, pull)
            return ticket

    def close(self) -> None:
        """Give up every pull; the engine keeps the layers it has."""
        with self._lock:
            for pull in self._pulls.values():
                pull.cancelled.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, pull: _Pull) -> None:
        error: EngineError | None = None
        try:
            if not pull.cancelled.is_set():
                with step(f"pull {pull.image}", lease=""):
                    self._engine.pull(pull.image, pull.note, pull.cancelled)
        except EngineError as problem:
            error = problem
        except Exception as problem:  # noqa: BLE001  # whoever waits must learn of it, whatever it was
            error = ImageError(f"The image {pull.image} could not be pulled: {type(problem).__name__}")
        with self._lock:
            if self._pulls.get(pull.image) is pull:
                del self._pulls[pull.image]
        pull.finish(error)
