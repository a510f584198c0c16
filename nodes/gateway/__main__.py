"""`python -m nodes.gateway`: bind the port, make the host key, serve in one or several processes until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence

import asyncssh

from nodes.gateway.config import GatewayConfig, parse_arguments
from nodes.gateway.control import ControlServer
from nodes.gateway.host_key import ensure_host_key
from nodes.gateway.privileges import become, share_directory
from nodes.gateway.server import Gateway

log = logging.getLogger("nodes.gateway")

BACKLOG = 256
PR_SET_PDEATHSIG = 1
SHUTDOWN_S = 2.0


def main() -> int:
    """Run the gateway; the exit status of the program."""
    config = parse_arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("asyncssh").setLevel(logging.ERROR)
    _raise_open_files()
    try:
        listener = _bind(config)
        config.host_key_file.parent.mkdir(parents=True, exist_ok=True)
        if config.user is not None:
            share_directory(config.control_socket.parent, config.user)
            become(config.user, owning=config.host_key_file.parent)
        if os.geteuid() == 0:
            log.warning("running as root, which the gateway never needs: give it a user of its own (--user)")
        host_key = ensure_host_key(config.host_key_file)
    except (OSError, KeyError, asyncssh.KeyImportError) as error:
        log.error("the gateway cannot start: %s", error)  # noqa: TRY400  the sentence says it all
        return 1
    log.info("listening on %s port %d, host key %s", config.host, config.port, host_key)
    if config.processes == 1:
        asyncio.run(_serve(config, listener, host_key))
        return 0
    return _supervise(config, listener, host_key)


def _bind(config: GatewayConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.create_server((config.host, config.port), family=family, backlog=BACKLOG)
    listener.settimeout(0.0)
    return listener


async def _serve(
    config: GatewayConfig,
    listener: socket.socket,
    host_key: str,
    *,
    siblings: Sequence[socket.socket] = (),
    first: socket.socket | None = None,
) -> None:
    """Serve until told to stop. `siblings` lead to the other processes, `first` to the one that answers for all."""
    gateway = Gateway(config)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    acceptor = await gateway.listen(listener)
    control = ControlServer(gateway, host_key, siblings)
    server = await control.start(config.control_socket) if first is None else None
    answering = asyncio.create_task(control.serve_first(first)) if first is not None else None
    watcher = asyncio.create_task(gateway.watch())
    waiter = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({watcher, waiter}, return_when=asyncio.FIRST_COMPLETED)
        if watcher.done():
            watcher.result()  # the watcher never ends by itself: say why it did
    finally:
        acceptor.close()
        if server is not None:
            server.close()
        for task in (watcher, answering):
            if task is not None:
                task.cancel()
        await gateway.close_all(SHUTDOWN_S)


def _supervise(config: GatewayConfig, listener: socket.socket, host_key: str) -> int:
    """Fork the serving processes over one bound socket.

    Where one dies, all end, and whoever started us starts us anew.
    """
    parent = os.getpid()
    children = []
    pairs = [socket.socketpair() for _ in range(config.processes - 1)]  # the first process to each of the others
    for number in range(config.processes):
        child = os.fork()
        if child == 0:
            _die_with(parent)
            first = pairs[number - 1][1] if number else None
            siblings = () if number else [ours for ours, _ in pairs]
            asyncio.run(_serve(config, listener, host_key, siblings=siblings, first=first))
            os._exit(0)
        children.append(child)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _tell(children, signal.SIGTERM))
    _, status = os.wait()
    _tell(children, signal.SIGTERM)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    return os.waitstatus_to_exitcode(status)


def _tell(children: list[int], number: int) -> None:
    for child in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)


def _die_with(parent: int) -> None:
    """A serving process must not outlive its supervisor."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def _raise_open_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
