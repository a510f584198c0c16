"""Docker's stream format for sessions without a terminal.

Frames of an 8-byte head (stream, 0, 0, 0, length) and a payload.
"""

from __future__ import annotations

from collections.abc import Iterator

HEAD_BYTES = 8
STDOUT, STDERR = 1, 2


class FrameError(Exception):
    """The bytes are not frames: the stream is raw, or its beginning was lost."""


class FrameParser:
    """Splits a stream into (stream number, bytes) as they come.

    Holds at most one head: payloads are passed on in pieces.
    """

    def __init__(self) -> None:
        self._head = b""
        self._stream = STDOUT
        self._left = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield what `data` completes. Raises FrameError on a head that cannot be one."""
        position = 0
        while position < len(data):
            if self._left:
                piece = data[position : position + self._left]
                position += len(piece)
                self._left -= len(piece)
                yield self._stream, piece
                continue
            wanted = HEAD_BYTES - len(self._head)
            self._head += data[position : position + wanted]
            position += wanted
            if len(self._head) == HEAD_BYTES:
                self._open_frame()

    def _open_frame(self) -> None:
        head, self._head = self._head, b""
        if head[0] > STDERR or head[1:4] != b"\0\0\0":
            raise FrameError("not a frame of an engine stream")
        self._stream = head[0]
        self._left = int.from_bytes(head[4:], "big")
