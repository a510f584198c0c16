"""Pulls of one node: who waits how long, who shares, and what a renter reads meanwhile."""

import threading
from collections.abc import Iterator

import pytest

from nodes.agent import images
from nodes.agent.failures import EngineUnreachableError, ImageError, image_error
from nodes.agent.images import ImagePool, Patience, Ticket
from nodes.agent.pull_progress import PullProgress
from nodes.agent.registry import manifest_of, retry_after_in, split_reference
from tests.nodes.agent.fake_engine import FakeEngine
from tests.nodes.agent.world import World, until

DIGEST = "sha256:" + "a" * 64


def limited(after_s: float | None = None) -> ImageError:
    return ImageError("The limit is used up.", again="limited", after_s=after_s)


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "LATER_PAUSES_S", (0.01, 0.01, 0.01))
    monkeypatch.setattr(images, "ENGINE_PAUSE_S", 0.01)


@pytest.fixture
def pool() -> Iterator[tuple[FakeEngine, ImagePool]]:
    engine = FakeEngine()
    made = ImagePool(engine)
    yield engine, made
    made.close()


def finished(ticket: Ticket) -> Ticket:
    until(lambda: ticket.done)
    return ticket


def test_a_registry_is_left_alone_for_as_long_as_it_asked_for() -> None:  # case C03
    patience = Patience()
    assert 7 <= patience.pause(limited(7)) <= 7 * 1.25
    assert 90 <= patience.pause(limited(90)) <= 90 * 1.25


def test_without_a_word_of_the_registry_the_pauses_grow_and_end() -> None:
    patience = Patience()
    pauses = [patience.pause(limited()) for _ in range(5)]
    assert all(low <= pause <= low * 1.25 for low, pause in zip((30, 60, 120, 240, 480), pauses, strict=True))
    with pytest.raises(ImageError):
        [patience.pause(limited()) for _ in range(5)]


def test_a_registry_that_wants_more_patience_than_a_launch_has_is_not_waited_for() -> None:
    with pytest.raises(ImageError, match=r"another 100 min\."):
        Patience().pause(limited(6000))


def test_what_cannot_change_is_not_tried_again() -> None:
    with pytest.raises(ImageError, match="such tag"):
        Patience().pause(image_error("x:9", "manifest unknown"))


def test_a_transfer_that_breaks_is_tried_three_times_more() -> None:
    patience, error = Patience(), image_error("x:9", "unexpected EOF")
    assert len([patience.pause(error) for _ in range(3)]) == 3
    with pytest.raises(ImageError, match="breaks off"):
        patience.pause(error)


def test_an_engine_that_is_away_is_waited_for_without_end() -> None:
    patience = Patience()
    assert {patience.pause(EngineUnreachableError("away")) for _ in range(100)} == {images.ENGINE_PAUSE_S}


# The pool


@pytest.mark.usefixtures("short_pauses")
def test_a_pull_goes_on_after_a_limit_a_break_and_an_engine_that_was_away(pool: tuple[FakeEngine, ImagePool]) -> None:
    engine, made = pool
    engine.pull_errors = [limited(0), image_error("x", "unexpected EOF"), EngineUnreachableError("away")]
    engine.pull_gate.set()
    finished(made.pull("far:1", lambda: None)).result()
    assert engine.pulls == ["far:1"] * 4


def test_who_waits_for_a_limit_reads_so_and_leaves_at_once(world: World) -> None:  # case C03
    world.engine.pull_errors = [limited(600)]
    world.want(image="far:1")
    world.portal.wait_for(
        lambda: any("limits pulls" in r["detail"] for r in world.portal.reports), "the reason for the wait", 20
    )
    world.portal.stop("ls-a")
    world.portal.wait_event("ls-a", "cleaned", 10)
    assert world.engine.pulls == ["far:1"]


def test_a_pull_that_waits_for_its_registry_keeps_no_other_waiting(pool: tuple[FakeEngine, ImagePool]) -> None:
    engine, made = pool
    engine.pull_errors = [limited(600)] * 3
    waiting = [made.pull(f"limited:{n}", lambda: None) for n in range(3)]
    until(lambda: all("limits" in ticket.progress for ticket in waiting))
    engine.pull_gate.set()
    finished(made.pull("far:1", lambda: None)).result()


def test_slow_pulls_give_their_places_away(pool: tuple[FakeEngine, ImagePool], monkeypatch: pytest.MonkeyPatch) -> None:
    engine, made = pool
    slow = [made.pull(f"slow:{n}", lambda: None) for n in range(images.PARALLEL_PULLS)]
    until(lambda: len(engine.pulls) == images.PARALLEL_PULLS)
    next_one = made.pull("far:1", lambda: None)
    until(lambda: "other images" in next_one.progress)
    monkeypatch.setattr(images, "HOLD_S", 0.0)
    finished_by = threading.Event()
    made.pull("far:2", finished_by.set)  # asks for a place with the new limit, as the first one does when it wakes
    until(lambda: "far:2" in engine.pulls)
    assert not any(ticket.done for ticket in slow)


def test_a_place_is_free_as_soon_as_a_pull_is_given_up(pool: tuple[FakeEngine, ImagePool]) -> None:
    engine, made = pool
    slow = [made.pull(f"slow:{n}", lambda: None) for n in range(images.PARALLEL_PULLS)]
    until(lambda: len(engine.pulls) == images.PARALLEL_PULLS)
    waiting = made.pull("far:1", lambda: None)
    slow[0].cancel()
    until(lambda: "far:1" in engine.pulls)
    assert not waiting.done


# Words and names


def downloading(layer: str, got: int, total: int) -> dict[str, object]:
    return {"id": layer, "status": "Downloading", "progressDetail": {"current": got, "total": total}}


def state(layer: str, status: str) -> dict[str, object]:
    return {"id": layer, "status": status, "progressDetail": {}}


def test_progress_is_told_in_bytes_once_every_layer_has_told_its_size() -> None:
    progress = PullProgress()
    assert progress.take({"status": "Pulling from x", "id": "1"}) == "asking the registry"
    progress.take(state("a", "Pulling fs layer"))
    progress.take(state("b", "Already exists"))
    assert progress.take(state("c", "Waiting")) == "pulling 0.0 MB, 1 of 3 layers done"
    assert progress.take(downloading("a", 10**9, 3 * 10**9)) == "pulling 1.0 GB, 1 of 3 layers done"
    assert progress.take(downloading("c", 2 * 10**8, 4 * 10**8)) == "pulling 1.2 of 3.4 GB"
    progress.take(state("a", "Download complete"))
    assert progress.take(state("c", "Verifying Checksum")) == "unpacking, 1 of 3 layers done"
    assert "broke" in progress.take({"id": "a", "status": "Retrying in 5 seconds", "progressDetail": {}})
    progress.take(state("a", "Pull complete"))
    assert progress.take(state("c", "Pull complete")) == "finishing"


@pytest.mark.parametrize(
    ("image", "split", "place"),
    [  # case C01
        ("r.test:5000/team/img", ("r.test:5000/team/img", "latest"), ("r.test:5000", "team/img")),
        ("r.test:5000/team/img:1.0", ("r.test:5000/team/img", "1.0"), ("r.test:5000", "team/img")),
        (f"img@{DIGEST}", ("img", DIGEST), ("registry-1.docker.io", "library/img")),
        (f"r.test:5000/img:1.0@{DIGEST}", ("r.test:5000/img", DIGEST), ("r.test:5000", "img")),
        ("localhost/img", ("localhost/img", "latest"), ("localhost", "img")),
        ("team/img:2", ("team/img", "2"), ("registry-1.docker.io", "team/img")),
        ("docker.io/team/img:2", ("docker.io/team/img", "2"), ("registry-1.docker.io", "team/img")),
    ],
)
def test_names_are_split_as_engines_do(image: str, split: tuple[str, str], place: tuple[str, str]) -> None:
    assert split_reference(image) == split
    assert manifest_of(image) == (*place, split[1])


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("toomanyrequests: retry-after: 128ms, allowed: 44000/minute", 0.128),
        ("too many requests, Retry-After: 30", 30.0),
        ("toomanyrequests: toomanyrequests", None),
    ],
)
def test_a_pause_named_in_the_refusal_is_read(said: str, seconds: float | None) -> None:
    assert retry_after_in(said) == (seconds if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("said", "again", "words"),
    [  # case C03
        ("toomanyrequests: You have reached your unauthenticated pull rate limit", "limited", "limits how often"),
        ("unauthorized: authentication required", "never", "asks for a login"),
        ("denied: requested access to the resource is denied", "never", "refuses access"),
        ("repository r/x not found: name unknown", "never", "does not exist"),
        ("no matching manifest for linux/arm64/v8 in the manifest list entries", "never", "this kind of machine"),
        ("received unexpected HTTP status: 503 Service Unavailable", "later", "fails"),
        ("Get https://r/v2/: net/http: TLS handshake timeout", "later", "could not be reached"),
    ],
)
def test_a_refusal_is_sorted_by_what_the_renter_can_do(said: str, again: str, words: str) -> None:
    error = image_error("x:9", said)
    assert error.again == again
    assert words in str(error)
