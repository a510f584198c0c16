"""GPUs that are out because of what happened to them, until the machine restarts or somebody says that it was mended.

One small file per GPU under STATE/gpu-faults, so that the command line can take one back while the agent runs.
"""

import json
from pathlib import Path

from nodes.agent.config import write_private
from nodes.agent.contact import boot_id
from nodes.agent.desired import DEVICE_UUID

_POSITION = "kernel-log"


class FaultBook:
    """The faults of one node; safe to use from several threads and processes. They end with a boot: that is a reset."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def note(self, uuid: str, why: str) -> bool:
        """This GPU is out; whether it was not before. The first reason stands."""
        if self.why(uuid):
            return False
        self._write(uuid, why)
        return True

    def why(self, uuid: str) -> str:
        """Why a GPU is out; empty when it is not."""
        return str(self._read(uuid) or "")

    def forgive(self, uuid: str) -> bool:
        """Somebody has reset or replaced it; whether it was out."""
        was_out = bool(self.why(uuid))
        self._path(uuid).unlink(missing_ok=True)
        return was_out

    @property
    def read_until(self) -> int:
        """The number of the last line of this boot's kernel log that was acted upon; -1 when none was."""
        position = self._read(_POSITION)
        return position if isinstance(position, int) else -1

    @read_until.setter
    def read_until(self, number: int) -> None:
        self._write(_POSITION, number)

    def _write(self, name: str, value: object) -> None:
        write_private(self._path(name), json.dumps({"boot_id": boot_id(), "value": value}))

    def _read(self, name: str) -> object:
        try:
            saved = json.loads(self._path(name).read_text())
            return saved["value"] if saved["boot_id"] == boot_id() else None
        except (OSError, ValueError, KeyError, TypeError):
            return None  # none, or torn by a crash: it is said again by whoever said it

    def _path(self, name: str) -> Path:
        if name != _POSITION and not DEVICE_UUID.fullmatch(name):
            raise ValueError(f"not the UUID of a GPU: {name!r}")
        return self._directory / f"{name}.json"
