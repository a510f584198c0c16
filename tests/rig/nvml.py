"""The fake NVML seen from Python: build the library, describe a fleet, change it under running programs.

The library reads its config at every call, so an edit takes effect at once in every program that has it loaded.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = HERE / "fake_nvml"
CACHE = HERE.parents[1] / "var" / "cache" / "fake-nvml"
SONAME = "libnvidia-ml.so.1"
GPU_IS_LOST = 15
H100_MEMORY = 85_520_809_984


@dataclass(frozen=True)
class FakeProcess:
    """A process on a GPU as NVML shows it: host pid, held memory in bytes, load in percent, place in `FakeGpu.mig`."""

    pid: int
    memory_bytes: int = 1 << 30
    sm_percent: int = 0
    memory_percent: int = 0
    mig: int | None = None


@dataclass(frozen=True)
class FakeSample:
    """A load the driver has measured: when (microseconds of the wall clock), how much, and whose (0: the card's)."""

    at_us: int
    percent: int
    pid: int = 0


@dataclass(frozen=True)
class FakeMig:
    """A MIG device of a GPU; sizes in MiB as NVML gives them."""

    uuid: str
    profile: str = "1g.10gb"
    gpu_instance: int = 7
    compute_instance: int = 0
    profile_id: int = 19
    sms: int = 16
    slices: int = 1
    memory_mb: int = 9856
    used_mb: int = 0


@dataclass(frozen=True)
class FakeGpu:
    """One GPU. `index` is its minor number (/dev/nvidia<index>), `error` an NVML code that every query answers with."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    memory_bytes: int = H100_MEMORY
    index: int = 0
    memory_used: int = 0
    memory_reserved: int = 608_174_080
    pci_bus_id: str = ""
    serial: str = ""
    compute_capability: tuple[int, int] = (9, 0)
    error: int = 0
    util_percent: int = 0
    mig_mode: bool = False
    mig: tuple[FakeMig, ...] = ()
    processes: tuple[FakeProcess, ...] = ()
    events: tuple[tuple[int, int], ...] = ()  # (number, Xid), see FakeFleet.xid
    samples: tuple[FakeSample, ...] = ()
    links: tuple[int, ...] = ()
    extra: dict[str, int] = field(default_factory=dict)

    @property
    def bus_id(self) -> str:
        """The PCI bus id, derived from the index where none is given."""
        return self.pci_bus_id or f"00000000:{0x1B + self.index:02X}:00.0"


def make_gpus(count: int, *, name: str = "NVIDIA H100 80GB HBM3", memory_bytes: int = H100_MEMORY) -> list[FakeGpu]:
    """`count` GPUs of one model with fresh UUIDs, linked to each other by NVLink."""
    return [
        FakeGpu(
            uuid=f"GPU-{uuid.uuid4()}",
            name=name,
            memory_bytes=memory_bytes,
            index=index,
            serial=f"16501230{index:05d}",
            links=tuple(other for other in range(count) if other != index),
        )
        for index in range(count)
    ]


def _gpu_lines(gpu: FakeGpu, bus_ids: dict[int, str]) -> Iterable[str]:
    major, minor = gpu.compute_capability
    yield f"gpu {gpu.uuid}"
    yield f"name {gpu.name}"
    yield f"pci {gpu.bus_id}"
    if gpu.serial:
        yield f"serial {gpu.serial}"
    scalars = {
        "minor": gpu.index,
        "cc_major": major,
        "cc_minor": minor,
        "memory_total": gpu.memory_bytes,
        "memory_used": gpu.memory_used,
        "memory_reserved": gpu.memory_reserved,
        "util_gpu": gpu.util_percent,
        "ecc_mode": 1,
        "mig_mode": int(gpu.mig_mode),
        "error": gpu.error,
        **gpu.extra,
    }
    yield from (f"{key} {value}" for key, value in scalars.items())
    for number, other in enumerate(gpu.links):
        if other in bus_ids:  # the other end may have been taken out
            yield f"nvlink {number} 1 {bus_ids[other]} 0 0 0 0"
    for process in gpu.processes:
        where = -1 if process.mig is None else process.mig
        yield f"proc {process.pid} {process.memory_bytes} {process.sm_percent} {process.memory_percent} {where}"
    yield from (f"sample {sample.at_us} {sample.pid} {sample.percent}" for sample in gpu.samples)
    for number, xid in gpu.events:
        yield f"event {number} {xid}"
    for mig in gpu.mig:
        yield (
            f"mig {mig.uuid} {mig.gpu_instance} {mig.compute_instance} {mig.profile_id} {mig.sms} "
            f"{mig.slices} {mig.slices} {mig.memory_mb} {mig.used_mb} {mig.profile}"
        )


def render_config(gpus: Sequence[FakeGpu], *, driver: str = "570.86.15", cuda: int = 12080, init_error: int = 0) -> str:
    """The config text for these GPUs; `cuda` as NVML counts it (12080 is 12.8), `init_error` an NVML code or 0."""
    lines = [f"driver {driver}", f"nvml {cuda // 1000}.{driver}", f"cuda {cuda}", f"init_error {init_error}"]
    bus_ids = {gpu.index: gpu.bus_id for gpu in gpus}
    for gpu in gpus:
        lines.extend(_gpu_lines(gpu, bus_ids))
    return "\n".join(lines) + "\n"


def write_config(
    path: Path, gpus: Sequence[FakeGpu], *, driver: str = "570.86.15", cuda: int = 12080, init_error: int = 0
) -> None:
    """Replaces the config at once: a program that reads it sees the old fleet or the new one, never half of one."""
    fresh = path.with_suffix(".new")
    fresh.write_text(render_config(gpus, driver=driver, cuda=cuda, init_error=init_error))
    fresh.replace(path)


class FakeFleet:
    """The GPUs behind one config file, with the edits that tests make under running programs."""

    def __init__(self, path: Path, gpus: Sequence[FakeGpu], *, driver: str = "570.86.15") -> None:
        self.path = path
        self.driver = driver
        self._gpus = {gpu.uuid: gpu for gpu in gpus}
        self._init_error = 0
        self._write()

    def _write(self) -> None:
        write_config(self.path, self.gpus, driver=self.driver, init_error=self._init_error)

    @property
    def gpus(self) -> list[FakeGpu]:
        """The fleet as it stands, in index order."""
        return sorted(self._gpus.values(), key=lambda gpu: gpu.index)

    @property
    def uuids(self) -> list[str]:
        """UUIDs of the whole GPUs, in index order."""
        return [gpu.uuid for gpu in self.gpus]

    def gpu(self, gpu_uuid: str) -> FakeGpu:
        """The GPU of that UUID as it stands; KeyError when there is none."""
        return self._gpus[gpu_uuid]

    def change(self, gpu_uuid: str, **changes: object) -> None:
        """Sets fields of one GPU, named as in `FakeGpu`."""
        self._gpus[gpu_uuid] = replace(self._gpus[gpu_uuid], **changes)  # type: ignore[arg-type] # names are the caller's
        self._write()

    def lose(self, gpu_uuid: str) -> None:
        """Every query of the GPU answers "GPU is lost" from now on."""
        self.change(gpu_uuid, error=GPU_IS_LOST)

    def heal(self, gpu_uuid: str) -> None:
        """The GPU answers again, without processes and with empty memory."""
        self.change(gpu_uuid, error=0, processes=(), memory_used=0)

    def xid(self, gpu_uuid: str, code: int) -> None:
        """The driver tells an Xid of this GPU to whoever waits for its events; the GPU answers as before."""
        number = 1 + max((number for gpu in self.gpus for number, _ in gpu.events), default=0)
        self.change(gpu_uuid, events=(*self._gpus[gpu_uuid].events, (number, code)))

    def remove(self, gpu_uuid: str) -> FakeGpu:
        """Takes the GPU out of the machine; returns it, so that `add` can put it back."""
        gone = self._gpus.pop(gpu_uuid)
        self._write()
        return gone

    def add(self, gpu: FakeGpu) -> None:
        """Puts a GPU into the machine."""
        self._gpus[gpu.uuid] = gpu
        self._write()

    def start_process(self, gpu_uuid: str, process: FakeProcess) -> None:
        """A process appears on the GPU and takes its memory."""
        gpu = self._gpus[gpu_uuid]
        self.change(
            gpu_uuid,
            processes=(*gpu.processes, process),
            memory_used=gpu.memory_used + process.memory_bytes,
        )

    def end_process(self, gpu_uuid: str, pid: int) -> None:
        """The process leaves the GPU and gives its memory back."""
        gpu = self._gpus[gpu_uuid]
        freed = sum(process.memory_bytes for process in gpu.processes if process.pid == pid)
        self.change(
            gpu_uuid,
            processes=tuple(process for process in gpu.processes if process.pid != pid),
            memory_used=max(0, gpu.memory_used - freed),
        )

    def fail_driver(self, code: int = 9) -> None:
        """The whole driver answers with this NVML code (9: driver not loaded); 0 heals it."""
        self._init_error = code
        self._write()


def library_dir() -> Path:
    """The directory with the built libnvidia-ml.so.1; built on first use and again when a source has changed."""
    digest = hashlib.sha256()
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.read_bytes())
    built = CACHE / digest.hexdigest()[:16]
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (built / SONAME).exists():
            subprocess.run([SOURCES / "build.sh", built], check=True)
    return built


def environment(config: Path) -> dict[str, str]:
    """What a process must be started with for nvidia-ml-py to find the fake library and this config."""
    inherited = os.environ.get("LD_LIBRARY_PATH")
    path = f"{library_dir()}:{inherited}" if inherited else str(library_dir())
    return {"LD_LIBRARY_PATH": path, "FAKE_NVML_CONF": str(config)}


if __name__ == "__main__":
    sys.stdout.write(f"{library_dir()}\n")
