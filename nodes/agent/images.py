"""Getting images onto the node: one pull per image whoever waits for it, a few at a time, and anybody may leave.

An actor waits for its ticket together with everything else it listens to, so a stop never stands behind a pull. A pull
that a registry puts off, or that is slower than others can be asked to wait for, keeps no place.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import SystemRandom

from nodes.agent.contact import now
from nodes.agent.engine import Engine
from nodes.agent.engine_stream import Cut
from nodes.agent.failures import EngineError, EngineUnreachableError, ImageError
from nodes.agent.log import logger, step

PARALLEL_PULLS = 3
HOLD_S = 120.0  # so long others wait for a pull's place; a slow one goes on without it
LATER_PAUSES_S = (1.0, 3.0, 9.0)  # after what may be a passing fault; the engine has tried several times itself
LIMIT_FIRST_S, LIMIT_LONGEST_S = 30.0, 600.0
LIMIT_PATIENCE_S = 1800.0  # all waiting for one registry's limit together
ENGINE_PAUSE_S = 3.0
JITTER = 0.25  # of a pause, added: never earlier than the registry has said

_random = SystemRandom()


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
        """How far it is, or what it waits for, for people: "pulling 1.2 of 3.4 GB"."""
        return self._pull.progress

    @property
    def lines(self) -> int:
        """How often something was said: it grows while anything comes, whatever the words are."""
        return self._pull.lines

    def result(self) -> None:
        """Raise what the pull raised; only meaningful when `done`."""
        if self._pull.error:
            raise self._pull.error

    def cancel(self) -> None:
        """Leave; the pull itself is given up when nobody waits for it any more."""
        self._pull.leave(self)


class _Pull:
    def __init__(self, image: str, on_cancel: Callable[[], None]) -> None:
        self.image = image
        self.done = threading.Event()
        self.cancelled = Cut()
        self.error: EngineError | None = None
        self.progress = ""
        self.lines = 0
        self.tickets: list[Ticket] = []
        self.lock = threading.Lock()
        self._on_cancel = on_cancel

    def note(self, progress: str) -> None:
        self.progress = progress
        self.lines += 1

    def leave(self, ticket: Ticket) -> None:
        with self.lock:
            if ticket in self.tickets:
                self.tickets.remove(ticket)
            if self.tickets:
                return
        self.cancel()

    def cancel(self) -> None:
        self.cancelled.set()
        self._on_cancel()

    def join(self, on_done: Callable[[], None]) -> Ticket | None:
        """A ticket, or None when this pull is over or given up and a new one is needed."""
        with self.lock:
            if self.cancelled.is_set() or self.done.is_set() or not self.tickets:
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


class Patience:
    """How long to wait before the next try of one pull."""

    def __init__(self) -> None:
        self._waited = 0.0
        self._limits = 0
        self._breaks = 0

    def pause(self, error: EngineError) -> float:
        """Seconds to wait after this failure; raises it when another try makes no sense."""
        if isinstance(error, EngineUnreachableError):
            return ENGINE_PAUSE_S  # nothing is known, and nothing else can be done on this node either
        if not isinstance(error, ImageError) or error.again == "never":
            raise error
        if error.again == "limited":
            return self._after_limit(error)
        if self._breaks == len(LATER_PAUSES_S):
            raise error
        self._breaks += 1
        return _jittered(LATER_PAUSES_S[self._breaks - 1])

    def _after_limit(self, error: ImageError) -> float:
        grown = min(LIMIT_FIRST_S * 2.0**self._limits, LIMIT_LONGEST_S)
        asked = grown if error.after_s is None else max(error.after_s, LATER_PAUSES_S[0])
        self._limits += 1
        self._waited += asked
        if self._waited > LIMIT_PATIENCE_S:
            raise ImageError(f"{error} It lets nobody in for another {_minutes(asked)}.") from error
        return _jittered(asked)


class ImagePool:
    """The pulls of one node."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pulls: dict[str, _Pull] = {}
        self._lock = threading.Lock()
        self._places = threading.Condition()
        self._taken: dict[_Pull, float] = {}

    def pull(self, image: str, on_done: Callable[[], None]) -> Ticket:
        """Start pulling an image, or join the pull that is under way."""
        with self._lock:
            running = self._pulls.get(image)
            if running and (ticket := running.join(on_done)):
                return ticket
            pull = self._pulls[image] = _Pull(image, self._wake_waiting)
            ticket = Ticket(pull, on_done)
            pull.tickets.append(ticket)
        threading.Thread(target=self._run, args=(pull,), name=f"pull-{image}", daemon=True).start()
        return ticket

    def close(self) -> None:
        """Give up every pull; the engine keeps the layers it has."""
        with self._lock:
            pulls = list(self._pulls.values())
        for pull in pulls:
            pull.cancel()

    def _run(self, pull: _Pull) -> None:
        error: EngineError | None = None
        try:
            self._fetch(pull)
        except EngineError as problem:
            error = problem
        except Exception as problem:  # noqa: BLE001  # whoever waits must learn of it, whatever it was
            logger.exception("pulling %s failed", pull.image)
            error = ImageError(f"The image {pull.image} could not be pulled: {type(problem).__name__}")
        with self._lock:
            if self._pulls.get(pull.image) is pull:
                del self._pulls[pull.image]
        pull.finish(error)

    def _fetch(self, pull: _Pull) -> None:
        patience = Patience()
        while not pull.cancelled.is_set():
            try:
                with self._place(pull), step(f"pull {pull.image}", lease=""):
                    if not pull.cancelled.is_set():
                        self._engine.pull(pull.image, pull.note, pull.cancelled)
                    return
            except EngineError as error:
                pause = patience.pause(error)
                logger.info("pull of %s waits %.0f s: %s", pull.image, pause, error)
                pull.note(_waiting(error, pause))
            pull.cancelled.wait(pause)

    @contextmanager
    def _place(self, pull: _Pull) -> Iterator[None]:
        with self._places:
            while not pull.cancelled.is_set() and (free_in := self._free_in()) > 0:
                pull.note("waiting for other images of this node")
                self._places.wait(free_in)
            self._taken[pull] = now()
        try:
            yield
        finally:
            with self._places:
                del self._taken[pull]
                self._places.notify_all()

    def _free_in(self) -> float:
        """Seconds until a place is free at the latest; 0 when one is."""
        held = sorted(until - now() for since in self._taken.values() if (until := since + HOLD_S) > now())
        return max(held[0], 0.01) if len(held) >= PARALLEL_PULLS else 0.0

    def _wake_waiting(self) -> None:
        with self._places:
            self._places.notify_all()


def _waiting(error: EngineError, pause: float) -> str:
    if isinstance(error, ImageError) and error.again == "limited":
        return f"waiting: the registry limits pulls, next try in {_minutes(pause)}"
    if isinstance(error, ImageError):
        return "waiting: the registry could not be reached, trying again"
    return "waiting: the node's container engine does not answer"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"  # noqa: PLR2004  # where minutes read better


def _jittered(seconds: float) -> float:
    return seconds * (1 + JITTER * _random.random())
