"""The command line: `enrol` once, `run` as a service, `status` for people, `retire` at the end of a node's life."""

import argparse
import os
import signal
import socket
import sys
from pathlib import Path
from queue import SimpleQueue

from nodes.agent import VERSION, log
from nodes.agent.agent import Agent, prepare_directories, take_lock
from nodes.agent.config import Options, load_identity, load_options, save
from nodes.agent.contact import boot_id
from nodes.agent.desired import DEVICE_UUID
from nodes.agent.engine import DockerEngine
from nodes.agent.failures import AgentError, EngineError
from nodes.agent.gateway_link import group_id
from nodes.agent.gpu_faults import FaultBook
from nodes.agent.heartbeat import host_key
from nodes.agent.holderbook import BOOK, HolderBook
from nodes.agent.holders import remove_holders
from nodes.agent.log import logger
from nodes.agent.machine import machine_id
from nodes.agent.network import HostRules
from nodes.agent.portal import PortalClient, PortalRefusedError, PortalUnavailableError, check_url
from nodes.agent.store import Store

FAILED = 1


def parser() -> argparse.ArgumentParser:
    """All commands with their options; an option that is not given is None."""
    top = argparse.ArgumentParser(prog="python -m nodes.agent", description="Lessor's agent on a GPU node.")
    commands = top.add_subparsers(dest="command", required=True)
    enrol = commands.add_parser("enrol", help="join a portal with a one-time token")
    enrol.add_argument("--portal", required=True, help="the portal's address, https://…")
    enrol.add_argument("--token", help="the one-time token lne_…; else LESSOR_AGENT_TOKEN")
    enrol.add_argument("--name", help="the host name to report, where the machine's own says little")
    run = commands.add_parser("run", help="serve leases until stopped")
    status = commands.add_parser("status", help="tell what this node is and what runs here")
    retire = commands.add_parser("retire", help="take network holders and network rules away")
    mended = commands.add_parser("gpu-mended", help="a GPU that was out after an error was reset or replaced")
    mended.add_argument("uuid", metavar="GPU-…", help="its UUID, as nvidia-smi -L prints it")
    for command in (enrol, run, status, retire, mended):
        command.add_argument("--state", dest="state_dir", type=Path, help="what must outlive a reboot")
        command.add_argument("--run", dest="run_dir", type=Path, help="sockets shared with the gateway")
    for command in (enrol, run, retire):
        command.add_argument("--docker-socket", type=Path)
    for command in (enrol, run):
        command.add_argument(
            "--ssh-host", help="the address renters connect to; default: as the portal sees this machine"
        )
        command.add_argument("--ssh-port", type=int, help="the port renters connect to")
        command.add_argument(
            "--gateway-port", type=int, help="where the gateway listens here, if a router maps the port"
        )
        command.add_argument("--gateway-group", help="the group of the gateway's user")
        command.add_argument("--bundle", dest="bundle_dir", type=Path, help="the SSH bundle mounted into leases")
        command.add_argument("--workspace-image", help="the image to run the preflight with")
        command.add_argument("--nvml", help="a libnvidia-ml.so.1 to load instead of the system's")
        command.add_argument("--simulate", action="store_true", default=None, help="no GPU is handed to containers")
        command.add_argument(
            "--memlock", action="store_true", default=None, help="lift RLIMIT_MEMLOCK in leases (RDMA)"
        )
        command.add_argument("--holders", type=int, help="networks kept ready for leases; 0: none")
        command.add_argument("--holder-network", help="their addresses, such as 10.231.0.0/16")
        command.add_argument("--nofile", type=int, help="open files allowed in a lease")
        command.add_argument("--allow-plain-http", action="store_true", default=None)
        command.add_argument("--log-level", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    given = vars(parser().parse_args(arguments))
    command = given.pop("command")
    try:
        options = load_options(given)
        log.configure(options.log_level)
        handlers = {"enrol": _enrol, "run": _run, "status": _status, "retire": _retire, "gpu-mended": _mended}
        return handlers[command](options, given)
    except (AgentError, PortalUnavailableError, PortalRefusedError) as error:
        sys.stderr.write(f"{error}\n")
        return FAILED


def _enrol(options: Options, given: dict[str, object]) -> int:
    url, token = str(given.pop("portal")), given.pop("token") or os.environ.get("LESSOR_AGENT_TOKEN")
    name = given.pop("name") or socket.gethostname()
    if not token:
        raise AgentError("Give the enrolment token with --token, or in LESSOR_AGENT_TOKEN.")
    check_url(url, allow_plain_http=options.allow_plain_http)
    prepare_directories(options)
    with take_lock(options.state_dir):
        identity = PortalClient(url, "").enrol(
            {
                "enrolment_token": token,
                "agent_version": VERSION,
                "hostname": name,
                "machine_id": machine_id(options.state_dir),
                "boot_id": boot_id(),
                "ssh_host": options.ssh_host,
                "ssh_port": options.ssh_port,
                "ssh_host_key": host_key(options.state_dir),
            },
            url,
        )
        save(options.state_dir, identity, given)
    sys.stdout.write(f"Enrolled as {identity.node_name} ({identity.node_id}).\n")
    return 0


def _run(options: Options, _given: dict[str, object]) -> int:
    identity = load_identity(options.state_dir)
    check_url(identity.portal_url, allow_plain_http=options.allow_plain_http)
    if group_id(options.gateway_group) is None:
        logger.warning("no group %s on this machine: the gateway has to run as root", options.gateway_group)
    agent = Agent(options, identity)
    # Not an Event: its set() in a handler waits for ever where the signal came while wait() held the same lock.
    stop: SimpleQueue[int] = SimpleQueue()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stop.put(number))
    agent.start()
    logger.info(
        "agent %s of node %s runs%s", VERSION, identity.node_id, " (GPUs are simulated)" if options.simulate else ""
    )
    stop.get()
    agent.stop()
    logger.info("agent ends; leases go on")
    return 0


def _status(options: Options, _given: dict[str, object]) -> int:
    identity = load_identity(options.state_dir)
    try:
        take_lock(options.state_dir).close()
        running = "not running"
    except AgentError:
        running = "running"
    lines = [
        f"node    {identity.node_id} ({identity.node_name})",
        f"portal  {identity.portal_url}",
        f"agent   {running}",
    ]
    records = Store(options.state_dir / "leases").load()
    lines += [f"lease   {r.lease_id} generation {r.generation}: {r.phase}, {', '.join(r.devices)}" for r in records]
    sys.stdout.write("\n".join(lines if records else [*lines, "lease   none"]) + "\n")
    return 0 if running == "running" else FAILED


def _mended(options: Options, given: dict[str, object]) -> int:
    uuid = str(given["uuid"])
    if not DEVICE_UUID.fullmatch(uuid):
        raise AgentError(f"Give the UUID of a GPU, as nvidia-smi -L prints it, not {uuid!r}.")
    was_out = FaultBook(options.state_dir / "gpu-faults").forgive(uuid)
    sys.stdout.write(f"{uuid} is leased again.\n" if was_out else f"{uuid} was not out.\n")
    return 0


def _retire(options: Options, _given: dict[str, object]) -> int:
    with take_lock(options.state_dir):
        if Store(options.state_dir / "leases").load():
            raise AgentError("Leases are still on this node; stop them first.")
        identity = load_identity(options.state_dir)
        try:
            remove_holders(DockerEngine(options.docker_socket), identity.node_id, HolderBook(options.state_dir / BOOK))
        except EngineError as error:
            logger.warning("network holders may be left, the container engine does not remove them: %s", error)
        HostRules().remove()
    return 0
