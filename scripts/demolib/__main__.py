"""``scripts/demo``: set everything up on this machine and run the main job once, each step with its time."""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.demolib import facts
from scripts.demolib.engine import find_or_start
from scripts.demolib.gpus import SIMULATED_MODEL, Gpus, detect
from scripts.demolib.images import ensure_workspace_image
from scripts.demolib.node import Node, sells
from scripts.demolib.portal_stack import ROOT, Portal
from scripts.demolib.processes import DemoError, Processes, wait_until
from scripts.demolib.renter import Renter

if TYPE_CHECKING:
    from collections.abc import Iterator

PRICE = "1.66"  # base per GPU and hour: on demand sells at 1.5 times that, 2.49
TOP_UP = "50.00"


class Screen:
    """Prints each step with its time and keeps the times for ``--json``."""

    def __init__(self) -> None:
        self.steps_ms: dict[str, int] = {}

    def say(self, text: str = "") -> None:
        """A line."""
        print(text, flush=True)

    def step(self, name: str, text: str, ms: float) -> None:
        """A finished step of the main job."""
        self.steps_ms[name] = round(ms)
        self.say(f"  {text:<58} {ms / 1000:8.2f} s")

    @contextlib.contextmanager
    def timed(self, name: str, text: str) -> Iterator[None]:
        """Time the block as a step."""
        start = time.monotonic()
        yield
        self.step(name, text, (time.monotonic() - start) * 1000)

    @contextlib.contextmanager
    def setup(self, text: str) -> Iterator[None]:
        """Time a part of the set-up."""
        start = time.monotonic()
        yield
        self.say(f"  {text:<58} {time.monotonic() - start:8.2f} s")


def main() -> int:
    """Parse, run, and end what was started."""
    options = parse()
    var = options.var.resolve()
    var.mkdir(parents=True, exist_ok=True)
    processes, screen = Processes(var), Screen()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        processes.end_leftovers()
        found = run(options, var, processes, screen)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
        if options.once:
            return 0
        screen.say("\nThe portal stays up. Ctrl-C ends everything that was started here.")
        while True:
            processes.check()
            time.sleep(2)
    except DemoError as error:
        screen.say(f"\nscripts/demo: {error}\nLogs: {var}/log")
        return 1
    except KeyboardInterrupt:
        screen.say("\nEnding.")
        return 0
    finally:
        processes.stop_all()


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument(
        "--once", action="store_true", help="run the main job once, then end everything that was started"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the facts of the run to FILE")
    parser.add_argument("--port", type=int, default=8000, help="port of the portal (default 8000)")
    parser.add_argument("--var", type=Path, default=ROOT / "var" / "demo", help="where database, logs and caches lie")
    parser.add_argument("--gpus", type=int, default=2, help="GPUs to lease (default 2, at most what there is)")
    parser.add_argument("--seconds", type=int, default=3, help="how long to use the lease")
    options = parser.parse_args()
    if options.gpus < 1 or options.seconds < 0:
        parser.error("--gpus must be at least 1 and --seconds at least 0")
    return options


def run(options: argparse.Namespace, var: Path, processes: Processes, screen: Screen) -> dict[str, Any]:
    """Set up, rent, use, release; the facts."""
    gpus = detect(var, simulated_count=4)
    screen.say("\nSet-up")
    portal = Portal(processes, var, options.port)
    with screen.setup("redis-server of our own"):
        portal.start_redis()
    with screen.setup("database and static files"):
        portal.prepare()
    with screen.setup("web, streams, worker, beat, one port"):
        portal.start()
    with screen.setup("Docker engine"):
        socket, origin = find_or_start(processes, var)
    with screen.setup(f"workspace image (engine {origin})"):
        ensure_workspace_image(socket)
    node = Node(processes, portal, gpus, socket)
    with screen.setup("this machine enrolled, preflight passed"):
        processes.at_end(node.stop)
        node.start()
        wait_until("The node's preflight", lambda: _sells(processes, node), seconds=120, pause=0.3)
    if gpus.simulated:
        screen.say("\nno NVIDIA driver: GPUs are simulated. Everything but the device is real.")
    password = _operator(portal)
    screen.say("\nThe main job")
    found = main_job(options, portal, node, gpus, screen)
    if not options.once:
        credentials(screen, portal, found, password)
    return {**found["facts"], "steps_ms": screen.steps_ms, "simulated": gpus.simulated}


def _sells(processes: Processes, node: Node) -> bool:
    processes.check()
    return sells(node.node_id)


def _operator(portal: Portal) -> str:
    """Prices and an operator's account, by the operator's own commands."""
    record = portal.var / "operator_password"
    if not record.exists():
        record.touch(mode=0o600)
        record.write_text(secrets.token_urlsafe(12))
    portal.manage("ensure_operator", "operator@demo.example", "--password-file", str(record))
    return record.read_text()


def main_job(options: argparse.Namespace, portal: Portal, node: Node, gpus: Gpus, screen: Screen) -> dict[str, Any]:
    """From sign-up to receipt, as a renter; the operator sets a price and books a payment."""
    address, password = f"renter-{secrets.token_hex(4)}@demo.example", secrets.token_urlsafe(12)
    renter = Renter(f"http://127.0.0.1:{portal.port}", portal.var / "mail", portal.var / "renter")
    with screen.timed("signup", "signed up, address confirmed by mail, signed in"):
        renter.sign_up(address, password)
    with screen.timed("key", "SSH key added"):
        key = renter.add_key()
    with screen.timed("token", "API token made"):
        renter.create_token()
    model = _price(portal, renter, gpus)
    portal.manage("top_up", address, TOP_UP, "--reference", f"demo {address}")
    offer = next(o for o in renter.call("GET", "offers")["results"] if o["gpu_model"] == model)
    count = min(options.gpus, offer["free_count"])
    if count < 1:
        raise DemoError(f"No {model} is free: {offer.get('reasons')}")
    request = {"gpu_model": model, "gpu_count": count, "plan": "on_demand", "max_duration_s": 3600}
    with screen.timed("quote", f"quote for {count} x {offer.get('short_name', model)}"):
        quote = renter.call("POST", "quotes", request)
    since = time.monotonic()
    with screen.timed("order", "lease ordered"):
        lease = renter.call("POST", "leases", {"quote": quote["quote"], "name": "demo"})
    facts_found = use(options, portal, node, renter, lease["id"], key, since, screen)
    return {"facts": facts_found, "address": address, "password": password}


def _price(portal: Portal, renter: Renter, gpus: Gpus) -> str:
    """The model of this machine's GPUs, with a price on it."""
    model = SIMULATED_MODEL
    if not gpus.simulated:
        model = facts.first_gpu_model()
    if not any(o["prices"] for o in renter.call("GET", "offers")["results"] if o["gpu_model"] == model):
        portal.manage("set_price", model, PRICE)
    return model


def use(
    options: argparse.Namespace,
    portal: Portal,
    node: Node,
    renter: Renter,
    lease_id: str,
    key: Path,
    since: float,
    screen: Screen,
) -> dict[str, Any]:
    """Follow the lease to ready, work in it over SSH, release it, read the receipt; the facts."""
    _, ms = renter.follow(lease_id, "started_at", since=since)
    screen.step("started", "container started (since the order)", ms)
    lease, ms = renter.follow(lease_id, "ready_at", since=since)
    screen.step("ready", "ready: keys, login and devices proved (since the order)", ms)
    with screen.timed("ssh", "first ssh"):
        greeting = renter.ssh(lease, key, "echo ok").strip()
    in_container, source = renter.probe(lease, key)
    in_database = facts.devices_in_database(lease_id)
    deviations = facts.hostconfig_deviations(node.docker_socket, lease["container_id"])
    time.sleep(options.seconds)
    since = time.monotonic()
    renter.call("POST", f"leases/{lease_id}/stop")
    _, ms = renter.follow(lease_id, "stop_requested_at", since=since)
    screen.step("released", "released by the renter, charging ended", ms)
    wait_until(
        "The end of the lease", lambda: renter.call("GET", f"leases/{lease_id}")["state"] == "ended", seconds=120
    )
    screen.step("cleaned", "stopped and cleaned, devices free again", (time.monotonic() - since) * 1000)
    found = facts.lease_facts(
        renter.call("GET", f"leases/{lease_id}"), renter.call("GET", f"leases/{lease_id}/receipt")
    )
    found |= {
        "node_ids": [node.node_id],
        "devices_db": in_database,
        "devices_container": in_container,
        "devices_source": source,
        "ssh": greeting,
        "hostconfig_ok": not deviations,
        "left_behind": facts.left_behind(node),
    }
    verify(found, deviations)
    report(screen, found, lease["currency"])
    return found


def verify(found: dict[str, Any], deviations: list[str]) -> None:
    """The demo fails when what it shows is not so."""
    wrong = []
    if found["devices_db"] != found["devices_container"]:
        wrong.append(
            f"devices differ: {found['devices_db']} in the database, {found['devices_container']} in the container"
        )
    if found["ticks"] != found["receipt_ticks"]:
        wrong.append(f"the receipt says {found['receipt_ticks']} ticks, the seconds make {found['ticks']}")
    if found["ssh"] != "ok":
        wrong.append(f"ssh printed {found['ssh']!r}")
    if deviations:
        wrong.append("container settings off the allow-list: " + "; ".join(deviations))
    if any(found["left_behind"].values()):
        wrong.append(f"left behind: {found['left_behind']}")
    if wrong:
        raise DemoError("\n  ".join(wrong))


def report(screen: Screen, found: dict[str, Any], currency: str) -> None:
    """The receipt and the proofs in words."""
    screen.say(
        f"\n  receipt: {found['seconds']} s × {found['units']} × {found['price_uusd_per_hour'] / 1e6:.6f} {currency}/h"
    )
    screen.say(f"           = {found['receipt_ticks']} ticks = {found['receipt_ticks'] / 3600e6:.6f} {currency}")
    screen.say(f"  devices: {', '.join(found['devices_container'])} (seen by {found['devices_source']})")
    screen.say("  left behind: nothing")


def credentials(screen: Screen, portal: Portal, found: dict[str, Any], operator_password: str) -> None:
    """Where to look next."""
    screen.say(f"\n  portal    {portal.url}")
    screen.say(f"  renter    {found['address']}   password {found['password']}")
    screen.say(f"  operator  operator@demo.example   password {operator_password}   {portal.url}/admin/")
    screen.say(f"  API       {portal.url}/api/v1/docs/")


if __name__ == "__main__":
    sys.exit(main())
