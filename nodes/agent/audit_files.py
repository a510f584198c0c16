"""The gateway's audit files as the agent reads them: every line once, in order, whatever is moved away meanwhile.

The gateway writes a line under a lock, whole, and never to a file that was moved away. So a file that is not the
current one is complete, and what is read under the lock fits together.
"""

import fcntl
import json
import os
import stat
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

READ_BYTES = 256 * 1024

Line = dict[str, object]


@dataclass(frozen=True)
class Place:
    """How far the files were read: the id in the first line of a file, and an offset in it. "" is the beginning."""

    file: str = ""
    offset: int = 0


@dataclass(frozen=True)
class _File:
    stream: IO[bytes]
    head: str
    size: int


class AuditFiles:
    """`audit.log` and the older `audit.log.1`, `.2`, …"""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, place: Place, limit: int) -> tuple[list[Line], Place]:
        """At most `limit` lines from `place` on, and where they end. Lines that are no JSON objects are left out.

        Where the file of `place` is gone, its lines were too old to be kept, and the oldest that is left comes next.
        """
        with ExitStack() as exits:
            files = self._open(exits)
            begin = next((n for n, file in enumerate(files) if place.file and file.head == place.file), None)
            if begin is None:
                begin, place = 0, Place()
            for file in files[begin:]:
                offset = place.offset if file.head == place.file else 0
                if offset < file.size:
                    lines, end = _lines(file.stream, offset, limit)
                    return lines, Place(file.head, end)
            return [], place

    def _open(self, exits: ExitStack) -> list[_File]:
        """All files, the oldest first, as they were at one moment."""
        try:
            current = exits.enter_context(_open(self._path))
        except FileNotFoundError:
            return []
        fcntl.flock(current, fcntl.LOCK_SH)
        try:
            numbers = sorted(self._numbers(), reverse=True)
            older = [self._path.with_name(f"{self._path.name}.{number}") for number in numbers]
            streams = [exits.enter_context(_open(path)) for path in older]
            # Where the one that was opened has just been moved away, it is among them.
            known = {_identity(stream) for stream in streams}
            streams += [] if _identity(current) in known else [current]
            return [_File(stream, _head(stream), os.fstat(stream.fileno()).st_size) for stream in streams]
        finally:
            fcntl.flock(current, fcntl.LOCK_UN)

    def _numbers(self) -> list[int]:
        suffixes = (path.name.removeprefix(f"{self._path.name}.") for path in self._path.parent.glob("audit.log.*"))
        return [int(suffix) for suffix in suffixes if suffix.isdigit()]


def _open(path: Path) -> IO[bytes]:
    """A plain file. The gateway, which owns the directory, must not lead us elsewhere or keep us waiting.

    Raises OSError, FileNotFoundError where there is none.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(f"{path} is no plain file")
    return os.fdopen(handle, "rb")


def _identity(stream: IO[bytes]) -> tuple[int, int]:
    facts = os.fstat(stream.fileno())
    return facts.st_dev, facts.st_ino


def _head(stream: IO[bytes]) -> str:
    """The id in the first line; inode numbers are given again to the next file and would mislead."""
    return str(_parsed(stream.readline(READ_BYTES)).get("id", ""))


def _lines(stream: IO[bytes], offset: int, limit: int) -> tuple[list[Line], int]:
    stream.seek(offset)
    found = []
    for raw in stream.read(READ_BYTES).splitlines(keepends=True)[:limit]:
        if not raw.endswith(b"\n"):
            break
        offset += len(raw)
        found.append(_parsed(raw))
    return [line for line in found if line], offset


def _parsed(raw: bytes) -> Line:
    try:
        line = json.loads(raw)
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}
