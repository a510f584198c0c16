"""Facts of the machine itself, read from /proc and the file system. No engine, no GPU."""

import os
import platform
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

from nodes.agent.config import write_private


@dataclass(frozen=True)
class MachineFacts:
    """Bytes and whole cores; texts as the system gives them."""

    hostname: str
    os: str
    kernel: str
    arch: str
    cpu_model: str
    cpu_cores: int
    memory_bytes: int
    disk_bytes: int
    disk_free_bytes: int


def read_machine(disk: Path) -> MachineFacts:
    """This machine now; `disk` is a path on the file system that holds images and volumes."""
    usage = shutil.disk_usage(_existing(disk))
    return MachineFacts(
        hostname=platform.node(),
        os=_field(Path("/etc/os-release"), "PRETTY_NAME", "=").strip('"') or platform.system(),
        kernel=platform.release(),
        arch=platform.machine(),
        cpu_model=_field(Path("/proc/cpuinfo"), "model name", ":") or platform.processor() or platform.machine(),
        cpu_cores=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        disk_bytes=usage.total,
        disk_free_bytes=usage.free,
    )


def machine_id(state_dir: Path) -> str:
    """The machine's own id, or one made once where the system has none."""
    for path in (Path("/etc/machine-id"), state_dir / "machine-id"):
        try:
            if text := path.read_text().strip():
                return text
        except OSError:
            continue  # containers and minimal images have no /etc/machine-id
    made = uuid.uuid4().hex
    write_private(state_dir / "machine-id", made)
    return made


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def _field(path: Path, name: str, separator: str) -> str:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        key, found, value = line.partition(separator)
        if found and key.strip() == name:
            return value.strip()
    return ""
