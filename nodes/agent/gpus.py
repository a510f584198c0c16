"""What NVML knows of this machine's GPUs. The only module that imports nvml.

A value the driver does not support is None, never a guess. Memory is in bytes; `used` leaves out what the driver
reserves, where the driver can tell the two apart.
"""

import ctypes
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import pynvml

from nodes.agent.failures import AgentError

nvml: Any = pynvml  # it ships no types; what it returns is given its type here

SAMPLE_TRIES = 3
NOT_KEPT = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)


@dataclass(frozen=True)
class GpuFacts:
    """One GPU as the node API takes it (`inventory.gpus[]`)."""

    uuid: str
    name: str
    memory_bytes: int
    index: int
    pci_bus_id: str
    serial: str | None
    compute_capability: str | None
    mig_mode: bool
    healthy: bool
    fault: str

    def as_json(self) -> dict[str, object]:
        """The object the portal expects."""
        return asdict(self)


@dataclass(frozen=True)
class LoadSample:
    """What the driver saw: a moment in microseconds of the clock the driver stamps with, and the load in percent."""

    at_us: int
    percent: int


class GpuUnreadableError(Exception):
    """NVML gave no answer about a device: it fell off the bus, or was never here."""


class Gpus:
    """The GPUs of this machine through one NVML session; safe to use from several threads."""

    def __init__(self, library: str = "", fault_of: Callable[[str], str] | None = None) -> None:
        """Load NVML. `fault_of` tells why a GPU is out though NVML has nothing against it.

        Raises:
            AgentError: no driver, or a driver that does not start.
        """
        if library:
            # pynvml asks the loader for "libnvidia-ml.so.1" by name; one that is loaded already answers to it.
            ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
        try:
            nvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise AgentError(
                f"The NVIDIA driver cannot be used here ({error}). Install the driver and check that nvidia-smi works, "
                "or start with --simulate and a stand-in given by --nvml."
            ) from error
        self._fault_of = fault_of or (lambda _uuid: "")
        self._seen: dict[str, GpuFacts] = {}
        self._lock = threading.Lock()
        self._events: _XidEvents | None = None

    def driver_version(self) -> str | None:
        """As nvidia-smi prints it."""
        version: str | None = _optional(lambda: _text(nvml.nvmlSystemGetDriverVersion()))
        return version

    def cuda_version(self) -> str | None:
        """The newest CUDA the driver supports, as "12.8"."""
        number = _optional(nvml.nvmlSystemGetCudaDriverVersion)
        return None if number is None else f"{number // 1000}.{number % 1000 // 10}"

    def inventory(self) -> tuple[GpuFacts, ...]:
        """Every GPU seen since start, by UUID; one that does not answer any more is listed as not healthy."""
        found: dict[str, GpuFacts] = {}
        for index in range(_optional(nvml.nvmlDeviceGetCount) or 0):
            facts = _optional(partial(_read, index))
            if facts:
                found[facts.uuid] = facts
                if facts.healthy and (fault := self._fault_of(facts.uuid)):
                    found[facts.uuid] = replace(facts, healthy=False, fault=fault)
        with self._lock:
            for uuid, known in self._seen.items():
                if uuid not in found:
                    fault = self._fault_of(uuid) or "the driver does not see this GPU any more"
                    found[uuid] = replace(known, healthy=False, fault=fault)
            self._seen = found
            return tuple(sorted(found.values(), key=lambda gpu: gpu.index))

    def wait_for_xid(self, uuids: tuple[str, ...], seconds: float) -> tuple[str, int] | None:
        """The next Xid that the driver tells of one of these GPUs, as UUID and code; None when none came in time.

        For one thread. Waits for the whole time too where the driver has no such events.
        """
        self._events = self._events or _XidEvents()
        return self._events.wait(uuids, seconds)

    def has(self, uuid: str) -> bool:
        """Whether NVML answers for this GPU or MIG device now."""
        try:
            self.memory_used(uuid)
        except GpuUnreadableError:
            return False
        return True

    def memory_used(self, uuid: str) -> int:
        """Bytes in use on a device.

        Raises:
            GpuUnreadableError: NVML gives no answer.
        """
        handle = _handle(uuid)
        memory = _optional(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
        memory = memory or _optional(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        if memory is None:
            raise GpuUnreadableError(f"{uuid}: the driver does not tell its memory")
        return int(memory.used)

    def processes(self, uuid: str) -> frozenset[int]:
        """Host pids that hold a context on a device (compute, graphics or MPS).

        Raises:
            GpuUnreadableError: NVML gives no answer.
        """
        handle = _handle(uuid)
        calls: tuple[Callable[[Any], Any], ...] = (
            nvml.nvmlDeviceGetComputeRunningProcesses,
            nvml.nvmlDeviceGetGraphicsRunningProcesses,
            nvml.nvmlDeviceGetMPSComputeRunningProcesses,
        )
        lists = [_optional(partial(call, handle)) for call in calls]
        if lists[0] is None:
            raise GpuUnreadableError(f"{uuid}: the driver does not tell its processes")
        return frozenset(int(process.pid) for processes in lists for process in processes or ())

    def process_load(self, uuid: str, since_us: int) -> tuple[LoadSample, ...] | None:
        """What processes did on a GPU after a moment, ended ones too: one sample each, the mean over that time.

        Returns:
            None where the driver keeps no such samples; empty when no process did anything.

        Raises:
            GpuUnreadableError: NVML gives no answer.
        """
        rows = _samples(uuid, lambda handle: nvml.nvmlDeviceGetProcessUtilization(handle, since_us))
        if rows is None:
            return None
        # memUtil is traffic, not what is held: memory that only lies there is 0
        return tuple(LoadSample(int(r.timeStamp), max(r.smUtil, r.memUtil, r.encUtil, r.decUtil)) for r in rows)

    def card_load(self, uuid: str, since_us: int) -> tuple[LoadSample, ...] | None:
        """Every sample of a GPU's load that the driver took after a moment; as `process_load`."""
        kind = pynvml.NVML_GPU_UTILIZATION_SAMPLES
        found = _samples(uuid, lambda handle: nvml.nvmlDeviceGetSamples(handle, kind, since_us)[1])
        return None if found is None else tuple(LoadSample(int(s.timeStamp), int(s.sampleValue.uiVal)) for s in found)

    def load_now(self, uuid: str) -> int | None:
        """Percent of the driver's last sample period (at most a second), None where it does not measure it.

        Raises:
            GpuUnreadableError: NVML gives no answer.
        """
        rates = _samples(uuid, lambda handle: (nvml.nvmlDeviceGetUtilizationRates(handle),))
        return max(int(rates[0].gpu), int(rates[0].memory)) if rates else None


class _XidEvents:
    """A set of the driver's events, in which each GPU is registered once."""

    def __init__(self) -> None:
        self._set = _optional(nvml.nvmlEventSetCreate)
        self._uuids: dict[int, str] = {}  # by handle: a GPU that is lost does not tell its UUID any more
        self._pause = threading.Event()

    def wait(self, uuids: tuple[str, ...], seconds: float) -> tuple[str, int] | None:
        for uuid in set(uuids) - set(self._uuids.values()):
            self._register(uuid)
        if not self._uuids:
            self._pause.wait(seconds)  # never set
            return None
        try:
            data = nvml.nvmlEventSetWait(self._set, round(seconds * 1000))
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_TIMEOUT:
                self._pause.wait(seconds)
            return None
        told = self._uuids.get(_address(data.device))
        return (told, int(data.eventData)) if told and data.eventType == nvml.nvmlEventTypeXidCriticalError else None

    def _register(self, uuid: str) -> None:
        if self._set is None:
            return
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._set)
        except pynvml.NVMLError:
            return  # lost, or without events: the kernel's log speaks of it
        self._uuids[_address(handle)] = uuid


def _address(handle: Any) -> int:  # an opaque NVML handle
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)


def _handle(uuid: str) -> Any:  # an opaque NVML handle
    try:
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError as error:
        raise GpuUnreadableError(f"{uuid}: {error}") from error


def _samples(uuid: str, read: Callable[[Any], Any]) -> Any:  # a sequence of pynvml's structures, or None
    """What a driver's sample buffer holds; None where it has no such buffer, empty where nothing new is in it."""
    handle = _handle(uuid)
    for _ in range(SAMPLE_TRIES):
        try:
            return read(handle)
        except pynvml.NVMLError as error:
            code = error.args[0]
            if code == pynvml.NVML_ERROR_NOT_FOUND:
                return ()
            if code in NOT_KEPT:
                return None
            if code != pynvml.NVML_ERROR_INSUFFICIENT_SIZE:  # that: a sample came in while we asked how many
                raise GpuUnreadableError(f"{uuid}: {error}") from error
    raise GpuUnreadableError(f"{uuid}: its samples change faster than they can be read")


def _read(index: int) -> GpuFacts:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid = _text(nvml.nvmlDeviceGetUUID(handle))
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)  # one that does not even tell its size counts as not seen
    capability = _optional(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    mig = _optional(lambda: nvml.nvmlDeviceGetMigMode(handle))
    serial = _optional(lambda: _text(nvml.nvmlDeviceGetSerial(handle)))
    fault = _fault(handle)
    return GpuFacts(
        uuid=uuid,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(memory.total),
        index=index,
        pci_bus_id=_text(nvml.nvmlDeviceGetPciInfo(handle).busId),
        serial=serial or None,
        compute_capability=f"{capability[0]}.{capability[1]}" if capability else None,
        mig_mode=bool(mig and mig[0]),
        healthy=not fault,
        fault=fault,
    )


def _fault(handle: Any) -> str:  # an opaque NVML handle
    """Why this GPU must not be sold, or "". Counters of errors that the hardware has dealt with are no reason."""
    remapped = _optional(lambda: nvml.nvmlDeviceGetRemappedRows(handle))
    if remapped and remapped[3]:
        return "row remapping failed: the GPU needs service"
    return ""


def _optional(read: Callable[[], Any]) -> Any:  # whatever pynvml returns
    """The value, or None where the driver does not have it (not supported, lost, no permission)."""
    try:
        return read()
    except pynvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
