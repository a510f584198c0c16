"""Keeps an eye on the GPUs: events of the driver, the kernel's log, and whether NVML still answers at all.

On a thread of its own, since a call to a driver in trouble may take minutes. Others read what it saw last.
"""

import threading
from collections.abc import Callable
from pathlib import Path

from nodes.agent.contact import now
from nodes.agent.gpu_faults import FaultBook
from nodes.agent.gpus import GpuFacts, Gpus
from nodes.agent.kernel_log import KernelLog
from nodes.agent.log import logger
from nodes.agent.xids import Xid, fault_of, parse_kernel_line, same_gpu

WAIT_S = 1.0  # for an event; then the kernel's log is looked at
LOOK_S = 5.0  # between two looks at the GPUs, unless something was noted
SILENT_S = 60.0


class GpuWatch:
    """What became of each GPU.

    `on_silent` is called when NVML has hung for a minute, until it raises nothing; `on_back` when it answers again.
    """

    def __init__(
        self,
        gpus: Gpus,
        faults: FaultBook,
        kernel_log: Path,
        *,
        on_silent: Callable[[], None],
        on_back: Callable[[], None],
    ) -> None:
        self._gpus = gpus
        self._faults = faults
        self._kernel_log = kernel_log
        self._on_silent = on_silent
        self._on_back = on_back
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-watch", daemon=True)
        self._latest: tuple[GpuFacts, ...] = ()
        self._seen_at = now()
        self._next_look = 0.0
        self._silent = False

    def start(self) -> None:
        """Look once, then go on looking; no event after this is missed."""
        self._look()
        self._wait_for_event(0)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, if the driver lets it."""
        self._stop.set()
        self._thread.join(WAIT_S + 1)

    def inventory(self) -> tuple[GpuFacts, ...]:
        """The GPUs as they were seen last; never waits for the driver."""
        if not self._silent and now() > self._seen_at + SILENT_S:
            logger.error("the NVIDIA driver has not answered for %.0f s", now() - self._seen_at)
            self._on_silent()
            self._silent = True
        return self._latest

    def _run(self) -> None:
        log = self._open_log()
        while not self._stop.is_set():
            try:
                self._wait_for_event(WAIT_S)
                if log:
                    self._read_log(log)
                if now() >= self._next_look:
                    self._look()
            except Exception:  # noqa: BLE001  # the thread must outlive a bug in one round
                logger.exception("watching the GPUs failed")
                self._stop.wait(WAIT_S)
        if log:
            log.close()

    def _open_log(self) -> KernelLog | None:
        try:
            return KernelLog(self._kernel_log)
        except OSError as error:
            logger.warning("the kernel's log is not read for errors of GPUs: %s", error)
            return None

    def _look(self) -> None:
        self._latest = self._gpus.inventory()
        self._seen_at = now()
        self._next_look = self._seen_at + LOOK_S
        if self._silent:
            self._silent = False
            logger.info("the NVIDIA driver answers again")
            self._on_back()

    def _wait_for_event(self, seconds: float) -> None:
        uuids = tuple(gpu.uuid for gpu in self._latest)
        event = self._gpus.wait_for_xid(uuids, seconds)
        if event is None:
            return
        uuid, code = event
        self._note(uuid, Xid(code))

    def _read_log(self, log: KernelLog) -> None:
        acted = self._faults.read_until
        for number, text in log.read():
            xid = parse_kernel_line(text)
            if xid is None or number <= acted:
                continue
            for gpu in self._latest:
                if same_gpu(xid.pci, gpu.pci_bus_id):
                    self._note(gpu.uuid, xid)
            self._faults.read_until = number

    def _note(self, uuid: str, xid: Xid) -> None:
        why = fault_of(xid)
        if not why:
            logger.info("GPU %s: Xid %d is no fault of the card", uuid, xid.code)
        elif self._faults.note(uuid, why):
            self._next_look = 0.0
            logger.error("GPU %s is out: %s", uuid, why)
