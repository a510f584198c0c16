"""Looks at the SSH way into the running leases, as a renter would, and tells the portal when it is shut.

Every 15 s: does the gateway answer on its port, and would it let each lease's keys in? Every 10 minutes, spread, a
whole login per lease with a throw-away key. What happens inside a container never counts: a renter who fills it with
processes until nothing more starts has not lost the way in, and must not get free time for it.
"""

import asyncio
import random
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import asyncssh

from nodes.agent.contact import now
from nodes.agent.failures import LaunchError
from nodes.agent.gateway_link import GatewayAnswer, GatewayDownError, GatewayLink
from nodes.agent.log import logger
from nodes.agent.outages import Outage, Outages
from nodes.agent.portal import PortalClient, PortalRefusedError, PortalUnavailableError, Report
from nodes.agent.probe import ProbeKey, fingerprint
from nodes.agent.store import LeaseRecord

EVERY_S = 15.0
LOGIN_EVERY_S = 600.0
LOGINS_AT_ONCE = 4
CONNECT_LIMIT_S = 5.0
BANNER = b"SSH-2.0-"

Records = Callable[[], Iterable[LeaseRecord]]


class Knocker(Protocol):
    """Makes a whole login; see nodes.agent.probe.SshProver."""

    async def knock(self, lease_id: str, key: ProbeKey, answer: GatewayAnswer) -> str:
        """Why nothing starts inside; empty where it does. Raises what a failed login raises."""


class SshWatch:
    """The watch of one node, on a thread of its own."""

    def __init__(
        self,
        records: Records,
        gateway: GatewayLink,
        knocker: Knocker,
        portal: PortalClient,
        *,
        port: int,
        file: Path,
        every_s: float = EVERY_S,
        login_every_s: float = LOGIN_EVERY_S,
    ) -> None:
        """`records` gives what is on this node, `port` is the gateway's here, `file` keeps what the portal was told."""
        self._records = records
        self._gateway = gateway
        self._knocker = knocker
        self._portal = portal
        self._port = port
        self._outages = Outages(file)
        self._every_s = every_s
        self._login_every_s = login_every_s
        self._login_at: dict[str, float] = {}
        self._login_faults: dict[str, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ssh-watch", daemon=True)

    def start(self) -> None:
        """The first look comes at once."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(5)

    def _run(self) -> None:
        while not self._stop.is_set():
            began = now()
            try:
                self.look()
            except Exception:  # noqa: BLE001  # the thread must outlive a bug in one look
                logger.exception("the SSH watch failed")
            self._stop.wait(max(0.0, began + self._every_s - now()))

    # Looking ----------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """One look at every running lease, and what the portal has to hear after it."""
        running = {r.lease_id: r for r in self._records() if r.phase == "running" and r.desired}
        faults = self._faults(running) if running else {}
        self._try_logins([lease_id for lease_id, why in faults.items() if not why])
        faults = {lease_id: why or self._login_faults.get(lease_id, "") for lease_id, why in faults.items()}
        self._forget(running)
        self._outages.note(faults, {lease_id: record.generation for lease_id, record in running.items()})
        self._tell()

    def _faults(self, running: Mapping[str, LeaseRecord]) -> dict[str, str]:
        """By lease why it cannot be reached, "" where it can. What shuts one door of the gateway shuts all leases."""
        try:
            shut = self._gate_fault()
            faults = {lease_id: shut or self._lease_fault(record) for lease_id, record in running.items()}
        except GatewayDownError as error:
            faults = dict.fromkeys(running, str(error))
        return faults

    def _gate_fault(self) -> str:
        try:
            with socket.create_connection(("127.0.0.1", self._port), CONNECT_LIMIT_S) as connection:
                begin = connection.recv(len(BANNER), socket.MSG_WAITALL)
        except OSError as error:
            return f"the SSH port does not answer: {error.strerror or type(error).__name__}"
        return "" if begin == BANNER else "the SSH port does not answer as SSH does"

    def _lease_fault(self, record: LeaseRecord) -> str:
        answer = self._gateway.ask(record.lease_id)
        wanted = record.desired.authorized_keys if record.desired else ()
        missing = {_fingerprint(line) for line in wanted} - {"", *answer.keys}
        return "the SSH gateway does not have the lease's keys" if missing else ""

    def _try_logins(self, lease_ids: Iterable[str]) -> None:
        """Whole logins that are due; one that failed is due again at the next look."""
        due = []
        for lease_id in lease_ids:
            at = self._login_at.setdefault(lease_id, now() + random.uniform(0, self._login_every_s))  # noqa: S311  # to spread them
            if at <= now() or lease_id in self._login_faults:
                due.append(lease_id)
        for lease_id in sorted(due, key=lambda lease: self._login_at[lease])[:LOGINS_AT_ONCE]:
            self._login_at[lease_id] = now() + self._login_every_s
            self._login_faults.pop(lease_id, None)
            if why := self._login_fault(lease_id):
                self._login_faults[lease_id] = why

    def _login_fault(self, lease_id: str) -> str:
        key = ProbeKey.make()
        try:
            self._gateway.let_probe(lease_id, key.public_line)
            answer = self._gateway.ask(lease_id)
            if inside := asyncio.run(self._knocker.knock(lease_id, key, answer)):
                logger.warning("lease %s: logged in, but nothing starts inside: %s", lease_id, inside)
        except GatewayDownError as error:
            return str(error)
        except (OSError, asyncssh.Error, TimeoutError) as error:
            return f"logging in over SSH failed: {type(error).__name__}"
        finally:
            self._gateway.let_probe(lease_id, None)
        return ""

    def _forget(self, running: Mapping[str, LeaseRecord]) -> None:
        for lease_id in set(self._login_at) - set(running):
            del self._login_at[lease_id]
            self._login_faults.pop(lease_id, None)

    # Telling ----------------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        for lease_id, outage in self._outages.to_tell():
            try:
                self._report(lease_id, outage)
            except PortalUnavailableError as error:
                logger.warning("what became of SSH is told later: %s", error)
                return
            except PortalRefusedError as error:
                logger.warning("the portal does not want to hear of SSH of %s: %s", lease_id, error)
                self._outages.forget(lease_id)

    def _report(self, lease_id: str, outage: Outage) -> None:
        """That it began, unless that is known; then that it is over, where it is. Each is repeated until answered."""
        if not outage.told:
            evidence = {"since_s": round(outage.since_s, 1), "why": outage.why}
            logger.error("lease %s cannot be reached over SSH: %s", lease_id, outage.why)
            self._portal.report(Report(lease_id, outage.generation, "ssh_down", detail=outage.why, evidence=evidence))
            self._outages.told(lease_id)
        if outage.over:
            logger.info("lease %s can be reached over SSH again", lease_id)
            self._portal.report(Report(lease_id, outage.generation, "ssh_up"))
            self._outages.told(lease_id)


@lru_cache(maxsize=4096)
def _fingerprint(line: str) -> str:
    with suppress(LaunchError):  # a key that nobody can read lets nobody in
        return fingerprint(line)
    return ""
