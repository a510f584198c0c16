"""Docker's stream frames, however they are cut on the way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.gateway.frames import STDERR, STDOUT, FrameError, FrameParser

FRAMES = st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), st.binary(max_size=300)), max_size=8)


def frame(stream: int, payload: bytes) -> bytes:
    """One frame as the engine sends it."""
    return bytes([stream, 0, 0, 0]) + len(payload).to_bytes(4, "big") + payload


@given(frames=FRAMES, cuts=st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_each_stream_comes_out_whole_and_in_order_wherever_the_bytes_are_cut(
    frames: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    data = b"".join(frame(stream, payload) for stream, payload in frames)
    parser, seen, position, step = FrameParser(), {STDOUT: b"", STDERR: b""}, 0, 0
    while position < len(data):
        piece = data[position : position + cuts[step % len(cuts)]]
        position, step = position + len(piece), step + 1
        for stream, payload in parser.feed(piece):
            seen[stream] += payload

    assert seen == {
        wanted: b"".join(payload for stream, payload in frames if stream == wanted) for wanted in (STDOUT, STDERR)
    }


def test_a_large_frame_is_passed_on_in_pieces_and_not_collected() -> None:
    parser = FrameParser()
    list(parser.feed(frame(STDOUT, b"x" * 1000)[:8]))

    assert list(parser.feed(b"x" * 10)) == [(STDOUT, b"x" * 10)]


@pytest.mark.parametrize("head", [b"\x03\0\0\0\0\0\0\1", b"\1\0\1\0\0\0\0\1", b"OCI runt"])
def test_bytes_that_are_no_frames_are_refused(head: bytes) -> None:
    with pytest.raises(FrameError):
        list(FrameParser().feed(head))
