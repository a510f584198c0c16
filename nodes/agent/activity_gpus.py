"""What the GPUs of one lease did since the last look: the load of whole cards, and what stands in for it on MIG slices.

The driver measures load by itself, several times a second, and keeps the last samples. A meter reads all that came in
since its last look, so that work shorter than the pause between two looks counts too. Where there is nothing kept to
read, on a MIG slice or an old driver, the meter has to be polled in between.
"""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from nodes.agent.activity import Signal
from nodes.agent.gpus import Gpus, GpuUnreadableError, LoadSample

FULL = 100
AHEAD_US = 1_000_000
MIG = "MIG-"


class Meter(Protocol):
    """One device of a lease."""

    def poll(self) -> None:
        """Look in between, where nothing is kept for the next read."""

    def read(self) -> dict[str, Signal]:
        """The signals since the last read, the highest of each."""


class LeaseGpus:
    """All devices of one lease. What they did before it is made does not count."""

    def __init__(self, gpus: Gpus, devices: Sequence[str]) -> None:
        self._meters = [SliceMeter(gpus, uuid) if uuid.startswith(MIG) else CardMeter(gpus, uuid) for uuid in devices]

    def poll(self) -> None:
        """To be called between two reads, more often than the shortest work that must be seen."""
        for meter in self._meters:
            meter.poll()

    def read(self) -> dict[str, Signal]:
        """Signals as in the heartbeat: `gpu_percent` is the highest of the cards, `mig_*` are sums over the slices."""
        found: dict[str, Signal] = {}
        for meter in self._meters:
            for name, value in meter.read().items():
                found[name] = _joined(name, found[name], value) if name in found else value
        return found


class CardMeter:
    """A whole GPU: the load of its busiest sample in percent."""

    def __init__(self, gpus: Gpus, uuid: str) -> None:
        self._gpus = gpus
        self._uuid = uuid
        self._by_process = _Buffer(lambda since: gpus.process_load(uuid, since), means=True)
        self._by_card = _Buffer(lambda since: gpus.card_load(uuid, since), means=False)
        self._keeps_samples = True
        self._polled: int | None = 0
        self.read()  # what is in the buffers already is somebody else's

    def poll(self) -> None:
        """See Meter."""
        if not self._keeps_samples and self._polled is not None:
            self._polled = _highest(self._polled, self._now())

    def read(self) -> dict[str, Signal]:
        """See Meter."""
        try:
            return {"gpu_percent": self._load()}
        except GpuUnreadableError:
            return {"gpu_percent": None}

    def _load(self) -> int | None:
        by_process, by_card = self._by_process.fresh(), self._by_card.fresh()
        self._keeps_samples = by_process is not None or by_card is not None
        if not self._keeps_samples:
            polled, self._polled = self._polled, 0
            return _highest(polled, self._now())
        if by_process == () and not self._gpus.processes(self._uuid):
            # Nobody worked on the card: whatever it measured there is the driver's own, such as for nvidia-smi.
            return 0
        return max((*(by_process or ()), *(by_card or ())), default=0)

    def _now(self) -> int | None:
        try:
            return self._gpus.load_now(self._uuid)
        except GpuUnreadableError:
            return None


class SliceMeter:
    """A MIG slice, whose load no driver tells: how many processes hold it, and how much memory is in use."""

    def __init__(self, gpus: Gpus, uuid: str) -> None:
        self._gpus = gpus
        self._uuid = uuid
        self._polled: tuple[int, int] | None = (0, 0)

    def poll(self) -> None:
        """See Meter."""
        if self._polled is None:
            return
        try:
            processes, memory = len(self._gpus.processes(self._uuid)), self._gpus.memory_used(self._uuid)
            self._polled = max(self._polled[0], processes), max(self._polled[1], memory)
        except GpuUnreadableError:
            self._polled = None

    def read(self) -> dict[str, Signal]:
        """See Meter."""
        self.poll()
        (processes, memory), self._polled = self._polled or (None, None), (0, 0)
        return {"mig_processes": processes, "mig_memory_bytes": memory}


class _Buffer:
    """A ring of samples in the driver, read from where the last read ended.

    The driver stamps by the wall clock. After that was set back, what stands in the ring with a later stamp has been
    read before, and waiting for a stamp after it would make the card look idle for as long.
    """

    def __init__(self, read: Callable[[int], Sequence[LoadSample] | None], *, means: bool) -> None:
        """`means`: a sample is the mean of all there was in the ring, and bears the newest stamp."""
        self._read = read
        self._means = means
        self._since_us = 0

    def fresh(self) -> tuple[int, ...] | None:
        """Percents of the samples that are new; None where the driver has no such ring, or it cannot be told now."""
        latest = time.time_ns() // 1000 + AHEAD_US
        if self._since_us > latest:
            self._since_us = 0
        samples = self._read(self._since_us)
        if samples is None or (self._means and any(sample.at_us > latest for sample in samples)):
            return None
        new = [sample for sample in samples if self._since_us < sample.at_us <= latest]
        self._since_us = max((sample.at_us for sample in new), default=self._since_us)
        # drivers are known to answer with impossible loads for processes that have ended
        return tuple(sample.percent for sample in new if sample.percent <= FULL)


def _highest(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)


def _joined(name: str, one: Signal, other: Signal) -> Signal:
    if one is None or other is None:
        return None
    return max(one, other) if name == "gpu_percent" else one + other
