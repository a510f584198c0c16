"""What the kernel counts of a container: CPU time of its cgroup and bytes in its network. Files only, no engine."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nodes.agent.exec_tree import Leader, find_leader, is_alive

PROC = Path("/proc")
NANO, MICRO = 1e-9, 1e-6


@dataclass(frozen=True)
class Container:
    """A running container as the kernel knows it: its first process, where its CPU time stands, its number of cores.

    `cpu_file` is None where no cgroup of its own could be found.
    """

    leader: Leader
    cpu_file: Path | None
    cores: float

    @classmethod
    def find(cls, pid: int, cores: float) -> "Container | None":
        """The container whose first process has this host pid; None where that has gone."""
        leader = find_leader(pid)
        return cls(leader, cpu_file(pid), cores) if leader else None

    def cpu_s(self) -> float | None:
        """CPU seconds of everything in the container since it began, ended processes too; None: cannot be read."""
        if self.cpu_file is None or not is_alive(self.leader):
            return None
        try:
            return _cpu_seconds(self.cpu_file.read_text())
        except (OSError, ValueError):
            return None

    def network_bytes(self) -> int | None:
        """Bytes in and out of the container's network since it began, loopback apart; None: cannot be read."""
        try:
            text = (PROC / str(self.leader.pid) / "net" / "dev").read_text()
            # asked afterwards: then it was this very process whose network was read, not a later one with its pid
            return interface_bytes(text) if is_alive(self.leader) else None
        except (OSError, ValueError, IndexError):
            return None


def interface_bytes(text: str) -> int:
    """Received and sent bytes of all interfaces but loopback in the text of a /proc/…/net/dev.

    Raises:
        ValueError, IndexError: not such a text.
    """
    total = 0
    for line in text.splitlines()[2:]:  # two lines of headings
        name, _, counts = line.partition(":")
        fields = counts.split()
        if name.strip() != "lo":
            total += int(fields[0]) + int(fields[8])
    return total


def cpu_file(pid: int, proc: Path = PROC) -> Path | None:
    """The file with a process's cgroup's CPU time: cpuacct.usage of cgroup v1, else cpu.stat of v2.

    None where there is none, or where the process is in no cgroup of its own: the root's numbers are the machine's.
    """
    try:
        groups = [line.split(":", 2)[1:] for line in (proc / str(pid) / "cgroup").read_text().splitlines()]
        mounts = list(_cgroup_mounts((proc / "self" / "mountinfo").read_text()))
    except OSError:
        return None
    # Where both kinds are mounted v1 does the counting, and only lines of v1 name controllers: those come first.
    for controllers, path in sorted(groups, key=lambda group: not group[0]):
        for mount in mounts:
            name = "cpuacct.usage" if controllers else "cpu.stat"
            if mount.holds(controllers) and (found := mount.directory(path)) and (found / name).is_file():
                return found / name
    return None


@dataclass(frozen=True)
class _Mount:
    unified: bool
    options: tuple[str, ...]
    root: str
    point: Path

    def holds(self, controllers: str) -> bool:
        if not controllers:
            return self.unified
        return "cpuacct" in controllers.split(",") and "cpuacct" in self.options

    def directory(self, path: str) -> Path | None:
        if path == "/" or not path.startswith(self.root):
            return None
        return self.point / PurePosixPath(path).relative_to(self.root)


def _cgroup_mounts(mountinfo: str) -> Iterator[_Mount]:
    for line in mountinfo.splitlines():
        fields, _, kind = line.partition(" - ")
        filesystem, _, options = kind.partition(" ")
        if filesystem in {"cgroup", "cgroup2"}:
            root, point = fields.split()[3:5]
            yield _Mount(filesystem == "cgroup2", tuple(options.split()[-1].split(",")), root, Path(point))


def _cpu_seconds(text: str) -> float:
    if text.startswith("usage_usec"):
        return int(text.split(maxsplit=2)[1]) * MICRO
    return int(text) * NANO
