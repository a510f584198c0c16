"""Proving that nothing of a lease is left. Every step is named, may run again, and says what it saw.

A device that does not come clean is quarantined; the lease's other devices, and the rest of the node, are not held up.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nodes.agent.contact import now
from nodes.agent.desired import container_name
from nodes.agent.failures import AgentError, EngineError, EngineUnreachableError
from nodes.agent.gateway_link import GatewayDownError
from nodes.agent.gpus import GpuUnreadableError
from nodes.agent.log import logger, step
from nodes.agent.parts import Parts
from nodes.agent.store import LeaseRecord

MEMORY_TOLERANCE = 64 << 20
UNKNOWN_BASE = 512 << 20  # for a container whose launch this agent knows nothing of
NEVER_HELD = "no container was made for this lease"
POLL_S = 0.1
ENGINE_RETRY_S = 2.0

Pause = Callable[[float], None]


@dataclass(frozen=True)
class CleanStep:
    """One thing looked at; `devices` are the UUIDs it speaks against when not ok."""

    name: str
    ok: bool
    detail: str = ""
    devices: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        """As the report's evidence holds it."""
        return {"name": self.name, "ok": self.ok, "detail": self.detail}


class Cleaning:
    """The cleaning of one lease. `pause` waits, and raises when the agent is being stopped."""

    def __init__(self, parts: Parts, record: LeaseRecord, pause: Pause) -> None:
        self._parts = parts
        self._record = record
        self._name = container_name(record.lease_id, record.generation)
        self._pause = pause
        self._log_path = ""
        self._give_up = 0.0

    def run(self) -> tuple[CleanStep, ...]:
        """All steps in order, each tried whatever became of those before it."""
        steps = (
            self._keys_gone, self._container_gone, self._processes_gone, self._gpu_memory_base, self._volume_gone,
            self._network_gone, self._log_gone,
        )  # fmt: skip
        with step("clean", self._record.lease_id, self._record.generation):
            return tuple(run() for run in steps)

    def _container_gone(self) -> CleanStep:
        give_up = now() + self._parts.cleaning_limit_s
        problem = ""
        while now() < give_up:
            try:
                facts = self._parts.engine.inspect(self._name)
                if facts is None:
                    return CleanStep("container_gone", ok=True)
                self._record.container_id = self._record.container_id or facts.id
                self._log_path = facts.log_path or self._log_path
                self._parts.engine.remove(self._name)
                continue
            except EngineUnreachableError as error:
                # As long as the engine is silent nobody knows whether the container runs: no limit applies.
                logger.warning("cleaning of %s waits: %s", self._record.lease_id, error)
                give_up = now() + self._parts.cleaning_limit_s
            except EngineError as error:
                problem = str(error)[:300]
            self._pause(ENGINE_RETRY_S)
        return CleanStep("container_gone", ok=False, detail=problem, devices=self._record.devices)

    def _processes_gone(self) -> CleanStep:
        if self._record.container_id is None:
            return CleanStep("processes_gone", ok=True, detail=NEVER_HELD)

        def left() -> list[str]:
            inside = pids_of_container(self._record.container_id) if self._record.container_id else ()
            found = [f"pid {pid} of the container" for pid in inside]
            for uuid in self._record.devices:
                base = self._record.pids_base.get(uuid, ())
                found += [f"pid {pid} on {uuid}" for pid in sorted(self._gpu_pids(uuid) - set(base))]
            return found

        self._give_up = now() + self._parts.cleaning_limit_s  # for the devices as a whole, this step and the next
        found = self._until_empty(left, self._give_up)
        at_fault = tuple(uuid for uuid in self._record.devices if any(uuid in text for text in found))
        return CleanStep(
            "processes_gone", not found, "; ".join(found), at_fault or (self._record.devices if found else ())
        )

    def _gpu_memory_base(self) -> CleanStep:
        if self._record.container_id is None:
            return CleanStep("gpu_memory_base", ok=True, detail=NEVER_HELD)
        used: dict[str, str] = {}

        def above() -> list[str]:
            found = []
            for uuid in self._record.devices:
                limit = self._record.memory_base.get(uuid, UNKNOWN_BASE - MEMORY_TOLERANCE) + MEMORY_TOLERANCE
                try:
                    memory = self._parts.gpus.memory_used(uuid)
                    used[uuid] = f"{uuid}: {memory >> 20} MiB of at most {limit >> 20} MiB"
                except GpuUnreadableError as error:
                    memory, used[uuid] = limit + 1, str(error)
                if memory > limit:
                    found.append(uuid)
            return found

        found = self._until_empty(above, self._give_up)
        return CleanStep("gpu_memory_base", not found, "; ".join(used.values()), tuple(found))

    def _volume_gone(self) -> CleanStep:
        return self._attempt("volume_gone", lambda: self._parts.volumes.remove(self._name))

    def _network_gone(self) -> CleanStep:
        def remove() -> None:
            self._parts.holders.release(self._name)
            self._parts.engine.network_remove(self._name)  # a lease has one or the other; no try asks which

        return self._attempt("network_gone", remove)

    def _keys_gone(self) -> CleanStep:
        self._parts.gateway.drop(self._record.lease_id)

        def kept() -> list[str]:
            try:
                return sorted(self._parts.gateway.ask(self._record.lease_id).keys)
            except GatewayDownError:
                return []  # it holds no connection either, and reads the file before it lets anybody in

        found = self._until_empty(kept)
        return CleanStep("keys_gone", not found, "the gateway still knows keys" if found else "")

    def _log_gone(self) -> CleanStep:
        gone = not (self._log_path and Path(self._log_path).exists())
        return CleanStep("log_gone", gone, "" if gone else "the container's log file is still there")

    def _gpu_pids(self, uuid: str) -> frozenset[int]:
        try:
            return self._parts.gpus.processes(uuid)
        except GpuUnreadableError:
            return frozenset()  # the memory step speaks against a device that does not answer

    def _attempt(self, name: str, action: Callable[[], None]) -> CleanStep:
        problem: list[str] = []

        def problems() -> list[str]:
            problem.clear()
            try:
                action()
            except (AgentError, EngineError, OSError) as error:
                problem.append(str(error)[:300])
            return problem

        found = self._until_empty(problems)
        return CleanStep(name, not found, "; ".join(found))

    def _until_empty(self, look: Callable[[], list[str]], give_up: float | None = None) -> list[str]:
        give_up = now() + self._parts.cleaning_limit_s if give_up is None else give_up
        while (found := look()) and now() < give_up:
            self._pause(POLL_S)
        return found


def pids_of_container(container_id: str) -> tuple[int, ...]:
    """Host pids in a container's cgroup, whichever driver and version names it: its path holds the id."""
    # Every process of the machine is looked at, for each lease that ends: nothing but the calls that it takes.
    found, wanted = [], container_id.encode()
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cgroup", "rb", buffering=0) as file:  # noqa: PTH123
                    if wanted in file.read():
                        found.append(int(name))
            except OSError:
                continue  # ended while we looked
    return tuple(found)
