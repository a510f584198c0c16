"""The workspace volume of a lease: an ext4 file system of its own size in a file, loop-mounted nosuid and nodev.

Where the machine cannot loop-mount, a plain directory stands in; the node then says `workspace_quota: false`. The
engine must share the agent's mount namespace, else a container would see the empty directory below.
"""

import os
import shutil
import subprocess
from pathlib import Path

from nodes.agent.failures import AgentError
from nodes.agent.spares import Spares

TOOL_TIMEOUT_S = 120
# No reserve for root and nothing left to a background thread; discard gives freed blocks back to the machine.
MKFS = ("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard")
PROBE = "probe-of-loop-mounts"


class Volumes:
    """The volumes under one directory. A volume's name is its idempotency key."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._spares = Spares(directory.with_name("spare-volumes"), self._format)
        self.quota = self._can_mount()

    def ensure(self, name: str, size_bytes: int) -> Path:
        """Make the volume, or find it; returns the directory to bind.

        Raises:
            AgentError: a tool failed; the message has its words.
        """
        target = self.directory(name)
        if self.quota and not target.is_mount():
            image = self._image(name)
            if not image.exists() and not self._spares.take(size_bytes, image):
                self._format(image, size_bytes)
            _run("mount", "-o", "loop,nodev,nosuid,discard", str(image), str(target))
            (target / "lost+found").rmdir()
        # The image decides the container's user; the lease is alone in here either way.
        target.chmod(0o777)
        return target

    def directory(self, name: str) -> Path:
        """The directory to bind, which exists afterwards, mounted or not."""
        target = self.path(name)
        target.mkdir(mode=0o755, exist_ok=True)
        return target

    def remove(self, name: str) -> None:
        """Unmount and delete; a volume that is not there is a success.

        Raises:
            AgentError: it is still in use.
        """
        target, image = self.path(name), self._image(name)
        while target.is_mount():
            _run("umount", str(target))
        image.unlink(missing_ok=True)
        if target.exists():
            shutil.rmtree(target)

    def path(self, name: str) -> Path:
        """Where the volume of that name is, or would be."""
        return self._directory / name

    def names(self) -> set[str]:
        """Volumes that exist, in whatever part."""
        return {entry.name.removesuffix(".img") for entry in self._directory.iterdir()}

    def _image(self, name: str) -> Path:
        return self._directory / f"{name}.img"

    def _format(self, image: Path, size_bytes: int) -> None:
        draft = image.with_suffix(".new")
        with draft.open("wb") as stream:
            os.ftruncate(stream.fileno(), size_bytes)
        draft.chmod(0o600)
        try:
            _run(*MKFS, str(draft))
        except AgentError:
            draft.unlink()
            raise
        draft.rename(image)

    def _can_mount(self) -> bool:
        self.quota = True
        try:
            self._format(self._image(PROBE), 16 << 20)
            self.ensure(PROBE, 16 << 20)
        except AgentError:
            self.quota = False
        finally:
            self.remove(PROBE)
        return self.quota


def _run(*command: str) -> None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AgentError(f"{command[0]}: {error}") from error
    if result.returncode:
        raise AgentError(f"{command[0]}: {result.stderr.strip()[-300:]}")
