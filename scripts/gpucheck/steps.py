"""The steps by their names in docs/unproven.md. Each returns a sentence, or says why it failed or was skipped."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from nodes.agent.activity_gpus import CardMeter
from nodes.agent.cleaning import MEMORY_TOLERANCE
from nodes.agent.engine import DockerEngine
from nodes.agent.failures import AgentError, EngineError
from nodes.agent.gpus import Gpus, GpuUnreadableError
from nodes.agent.heartbeat import gpu_request
from nodes.agent.hostconfig import BUNDLE_TARGET, ROLE, WORKSPACE_TARGET, NodeFacts
from nodes.agent.probe import parse_probe
from nodes.agent.volumes import Volumes
from scripts.gpucheck.container import SCRATCH, add_scratch_image, container, remove_scratch_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from scripts.gpucheck.container import Container

SOURCE = Path(__file__).parent / "vram.c"
BUSYBOX = f"{BUNDLE_TARGET}/bin/busybox"
# The driver's libraries lie where the toolkit's hook puts them, which differs by distribution.
LIBRARY_PATH = f"{BUNDLE_TARGET}/lib:/usr/lib/x86_64-linux-gnu:/usr/lib64:/usr/local/nvidia/lib64"
LOADER = (f"{BUNDLE_TARGET}/lib/ld-linux-x86-64.so.2", "--library-path", LIBRARY_PATH)
NOFILE = 20_000
MANY_FILES = 1_048_576
CAP_SYS_RESOURCE = 24
SETTLE_S = 30.0
LOOK_S = 10  # between a burst and the look that must still see it
IDLE_BELOW = 5  # percent


class Failed(Exception):  # reads as what happened
    """The step did not show what it should."""


class Skipped(Exception):  # reads as what happened
    """The step cannot be tried on this machine."""


@dataclass(frozen=True)
class Result:
    """How a step ended: ``status`` is ok, failed or skipped."""

    name: str
    status: str
    why: str

    def as_json(self) -> dict[str, str]:
        """The object in ``--json``."""
        return asdict(self)


class Machine:
    """Driver, engine and places; everything through the agent's own parts."""

    def __init__(self, docker_socket: Path, bundle: Path, image: str) -> None:
        self.docker_socket, self.image = docker_socket, image
        self.gpus = Gpus()
        self.engine = DockerEngine(docker_socket)
        self._places = ExitStack()
        # on disk, not in /run: the engine must see it, and loop devices want a real file
        self.directory = Path(self._places.enter_context(tempfile.TemporaryDirectory(prefix="lessor-gpu-check-")))
        self.directory.chmod(0o711)
        self.volumes = Volumes(self.directory / "volumes")
        self.whole = [gpu.uuid for gpu in self.gpus.inventory() if gpu.healthy and not gpu.mig_mode]
        self._bundle = bundle.resolve()

    def node(self) -> NodeFacts:
        """As the agent would decide it. Raises EngineError without an engine."""
        uuids = tuple(gpu.uuid for gpu in self.gpus.inventory())
        request = gpu_request(self.engine.facts(), uuids, simulated=False)
        return NodeFacts("gpu-check", request, self._bundle, nofile=NOFILE, memlock=False)

    def run(
        self,
        devices: Sequence[str],
        image: str,
        *command: str,
        node: NodeFacts | None = None,
        program: Path | None = None,
    ) -> AbstractContextManager[Container]:
        """A container of the check."""
        return container(self.engine, self.volumes, node or self.node(), devices, image, command, program=program)

    def facts(self) -> dict[str, object]:
        """What was looked at."""
        return {
            "driver_version": self.gpus.driver_version(),
            "cuda_version": self.gpus.cuda_version(),
            "gpus": [gpu.as_json() for gpu in self.gpus.inventory()],
        }

    def leases(self) -> list[str]:
        """Leases on this machine. Their GPUs are not ours to try; without an engine there are none."""
        try:
            return sorted(
                facts.labels.get("lessor.lease", "") for facts in self.engine.containers(f"lessor.role={ROLE}")
            )
        except EngineError:
            return []

    def idle(self) -> str:
        """A GPU that no program uses. Raises Skipped where there is none."""
        for gpu in _whole(self):
            if not self.gpus.processes(gpu):
                return gpu
        raise Skipped("programs run on every GPU; end them and try again")

    def close(self) -> None:
        """Remove the places."""
        self._places.close()


def run_steps(machine: Machine) -> Iterator[Result]:
    """Every step in order, each tried whatever became of those before it."""
    canary = Canary(machine)
    steps: dict[str, Callable[[], str]] = {
        "toolkit": lambda: toolkit(machine),
        "uuids": lambda: uuids(machine),
        "exact_devices": lambda: exact_devices(machine),
        "vram_canary": canary.run,
        "clean_after": canary.clean_after,
        "gpu_load": lambda: gpu_load(machine),
        "limits": lambda: limits(machine),
    }
    try:
        for name, step in steps.items():
            yield _result(name, step)
    finally:
        machine.close()


def _result(name: str, step: Callable[[], str]) -> Result:
    try:
        return Result(name, "ok", step())
    except Skipped as reason:
        return Result(name, "skipped", str(reason))
    except (Failed, AgentError, EngineError, GpuUnreadableError, OSError, ValueError) as error:
        return Result(name, "failed", " ".join(str(error).split())[:500])


def toolkit(machine: Machine) -> str:
    """The engine takes our request, by CDI or as a device request, and the probe in the container speaks to NVML."""
    [gpu, *_] = _whole(machine)
    node = machine.node()
    with machine.run([gpu], machine.image, f"{BUNDLE_TARGET}/bin/probe") as probe:
        source, _seen = parse_probe(probe.wait())
    if source != "nvml":
        raise Failed(f"the probe could not load NVML in the container, it read {source}")
    return f"Docker {machine.engine.facts().version} takes a {node.gpu_request.replace('_', ' ')}"


def uuids(machine: Machine) -> str:
    """The inventory has the UUIDs that nvidia-smi prints."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise Failed(f"nvidia-smi -L: {error}") from error
    theirs = set(re.findall(r"^GPU \d+:.*\(UUID: (GPU-[0-9a-fA-F-]+)\)", listed, re.MULTILINE))
    ours = {gpu.uuid for gpu in machine.gpus.inventory()}
    if theirs != ours:
        raise Failed(f"nvidia-smi has {sorted(theirs)}, the inventory {sorted(ours)}")
    return f"{len(ours)} GPUs, the same in both"


def exact_devices(machine: Machine) -> str:
    """A container sees the GPUs it was given and no other, in an ordinary image and in one from scratch."""
    whole = _whole(machine)
    add_scratch_image(machine.docker_socket)
    try:
        cases = [(image, whole[:count]) for image in (machine.image, SCRATCH) for count in {1, min(2, len(whole))}]
        for image, given in [*cases, (SCRATCH, whole[-1:])]:
            _check_devices(machine, image, given)
    finally:
        remove_scratch_image(machine.docker_socket)
    others = f"{len(whole) - 1} other GPUs stayed unseen" if len(whole) > 1 else "this machine has no other GPU to hide"
    return f"exact in {machine.image} and in an image from scratch; {others}"


def _check_devices(machine: Machine, image: str, given: Sequence[str]) -> None:
    script = f"{BUNDLE_TARGET}/bin/probe; {BUSYBOX} ls /dev | {BUSYBOX} grep -c '^nvidia[0-9][0-9]*$'"
    with machine.run(given, image, BUSYBOX, "sh", "-c", script) as inside:
        said, _, nodes = inside.wait().strip().rpartition("\n")
    source, seen = parse_probe(said)
    if source != "nvml" or seen != tuple(sorted(given)):
        raise Failed(f"in {image}: given {sorted(given)}, seen {list(seen)} by {source}")
    # without CAP_MKNOD inside, a GPU that has no node cannot be opened
    if int(nodes) != len(given):
        raise Failed(f"in {image}: {nodes} GPU device nodes for {len(given)} GPUs")


class Canary:
    """One lease fills a card's memory with a marker; the next one on the card must not find it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._base: tuple[str, int, frozenset[int]] | None = None

    def run(self) -> str:
        """Write, release, read."""
        gpu = self._machine.idle()
        program, marker = _compile(self._machine), secrets.token_hex(4)
        gpus = self._machine.gpus
        self._base = gpu, gpus.memory_used(gpu), gpus.processes(gpu)
        with _vram(self._machine, gpu, program, "write", marker) as writer:
            written = _vram_answer(writer.wait_line())
            held = gpus.memory_used(gpu) - self._base[1]
        self.clean_after()
        with _vram(self._machine, gpu, program, "read", marker) as reader:
            read = _vram_answer(reader.wait())
        if read["marker_words"]:
            raise Failed(f"the next lease found {read['marker_words']} words of the marker")
        gib = [value / (1 << 30) for value in (written["bytes"], read["bytes"], held)]
        return (
            f"{gib[0]:.1f} GiB written ({gib[2]:.1f} held by NVML's word), {gib[1]:.1f} GiB read afterwards, no trace"
        )

    def clean_after(self) -> str:
        """Memory back to its base and no process left, by NVML's word."""
        if self._base is None:
            raise Skipped("no lease has used a card")
        gpu, memory, processes = self._base
        gpus, end = self._machine.gpus, time.monotonic() + SETTLE_S
        while True:
            above = gpus.memory_used(gpu) - memory
            left = gpus.processes(gpu) - processes
            if above <= MEMORY_TOLERANCE and not left:
                return f"memory of {gpu} within {max(0, above) >> 20} MiB of its base, no process left"
            if time.monotonic() > end:
                raise Failed(f"{gpu}: {above >> 20} MiB above its base, processes {sorted(left)}")
            time.sleep(0.2)


def gpu_load(machine: Machine) -> str:
    """A burst of work is seen by a look that comes later; memory that is only held, and nvidia-smi, are no load."""
    gpu, program = machine.idle(), _compile(machine)
    gpus = machine.gpus
    kept = [gpus.process_load(gpu, 0) is not None, gpus.card_load(gpu, 0) is not None]
    meter = CardMeter(gpus, gpu)
    with _vram(machine, gpu, program, "burst", secrets.token_hex(4)) as worker:
        _vram_answer(worker.wait_line())
        time.sleep(LOOK_S)
        begin = time.monotonic()
        burst = meter.read()["gpu_percent"]
        look_ms = (time.monotonic() - begin) * 1000
        for _ in range(LOOK_S):
            subprocess.run(["nvidia-smi"], capture_output=True, check=False, timeout=60)
            time.sleep(1)
        held = meter.read()["gpu_percent"]
    words = f"{burst} % after a burst, {held} % while memory is held and nvidia-smi asks; a look takes {look_ms:.1f} ms"
    if burst is None or burst < IDLE_BELOW or held is None or held >= IDLE_BELOW:
        raise Failed(f"{words}; samples are kept by process: {kept[0]}, by card: {kept[1]}")
    return f"{words}; samples are kept by process: {kept[0]}, by card: {kept[1]}"


def _vram(machine: Machine, gpu: str, program: Path, verb: str, marker: str) -> AbstractContextManager[Container]:
    command = (*LOADER, f"{WORKSPACE_TARGET}/{program.name}", verb, marker)
    return machine.run([gpu], machine.image, *command, program=program)


def _compile(machine: Machine) -> Path:
    program = machine.directory / "vram"
    command = ["gcc", "-O2", "-o", str(program), str(SOURCE), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"vram.c does not compile: {done.stderr[-300:]}")
    return program


def _vram_answer(output: str) -> dict[str, int]:
    lines = [line for line in output.splitlines() if line.startswith("{")]
    answer = json.loads(lines[-1]) if lines else {"error": output.strip()[-200:] or "it said nothing"}
    if not answer.get("ok"):
        raise Failed(f"vram: {answer.get('error')} {answer.get('code', '')}".strip())
    if not answer["bytes"]:
        raise Failed("vram: no memory could be taken")
    return {name: int(answer[name]) for name in ("bytes", "marker_words")}


def limits(machine: Machine) -> str:
    """Locked memory without limit (RDMA wants it) and a million open files."""
    if not _may_lift_limits():
        raise Skipped("this machine's root lacks CAP_SYS_RESOURCE, so nobody here can lift limits")
    [gpu, *_] = _whole(machine)
    node = replace(machine.node(), nofile=MANY_FILES, memlock=True)
    with machine.run([gpu], machine.image, BUSYBOX, "cat", "/proc/self/limits", node=node) as inside:
        said = inside.wait()
    for name, value in (("Max locked memory", "unlimited"), ("Max open files", str(MANY_FILES))):
        if not re.search(rf"^{name}\s+{value}\s+{value}\s", said, re.MULTILINE):
            raise Failed(f"{name} is not {value} in the container")
    return f"memlock unlimited and nofile {MANY_FILES} take effect"


def _may_lift_limits() -> bool:
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return bool(found and int(found[1], 16) >> CAP_SYS_RESOURCE & 1)


def _whole(machine: Machine) -> list[str]:
    if not machine.whole:
        raise Skipped("no healthy GPU outside MIG mode")
    return machine.whole
