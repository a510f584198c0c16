"""A TCP connection made inside a lease's network namespace, so that it reaches the container's own 127.0.0.1.

A socket belongs to the namespace its maker was in. Only the making happens there, on a thread that ends right after
and takes its changed namespace with it; connecting is done on the event loop as for any socket.
"""

from __future__ import annotations

import asyncio
import socket

from nodes.agent.namespaces import inside

CONNECT_LIMIT_S = 5.0
LOOPBACK: dict[str, list[tuple[socket.AddressFamily, str]]] = {
    "127.0.0.1": [(socket.AF_INET, "127.0.0.1")],
    "::1": [(socket.AF_INET6, "::1")],
    "localhost": [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")],
}


async def connect_inside(pid: int, host: str, port: int) -> socket.socket:
    """Connect to a key of LOOPBACK in the network namespace of host process `pid`. Raises the last OSError."""
    failure = OSError(f"{host} has no address")
    for family, address in LOOPBACK[host]:
        try:
            return await _connect(pid, family, address, port)
        except OSError as error:
            failure = error
    raise failure


async def _connect(pid: int, family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    # Waited for on the loop: making a socket takes no time.
    connection = inside(pid, "net", lambda: socket.socket(family, socket.SOCK_STREAM))
    try:
        connection.settimeout(0.0)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop = asyncio.get_running_loop()
        await asyncio.wait_for(loop.sock_connect(connection, (address, port)), CONNECT_LIMIT_S)
    except TimeoutError as error:
        connection.close()
        raise TimeoutError(110, "no answer in time") from error
    except BaseException:
        connection.close()
        raise
    return connection
