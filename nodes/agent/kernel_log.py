"""The kernel's log as it grows, record by record. For what the driver says there and to nobody else."""

import os
import re
from pathlib import Path

_RECORD = re.compile(r"\d+,(\d+),\d+,[^;]*;(.*)")
CHUNK = 8192  # the kernel's longest record fits


class KernelLog:
    """/dev/kmsg, or a file with lines of its form."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            OSError: it is not there, or not for us.
        """
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._rest = ""

    def close(self) -> None:
        """Read no more."""
        os.close(self._descriptor)

    def read(self) -> list[tuple[int, str]]:
        """Number and text of each record since the last call, or since the oldest one kept."""
        found = []
        while chunk := self._chunk():
            *lines, self._rest = (self._rest + chunk).split("\n")
            found += [(int(record[1]), record[2]) for line in lines if (record := _RECORD.match(line))]
        return found

    def _chunk(self) -> str:
        while True:
            try:
                return os.read(self._descriptor, CHUNK).decode(errors="replace")
            except BlockingIOError:
                return ""
            except BrokenPipeError:
                continue  # records were overwritten before they were read; the next call begins at the oldest left
