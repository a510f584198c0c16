"""How a renter gets into a lease: the commands and config lines of pages and API. Pure text from stored facts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rental.models import Lease

SSH_PORT = 22  # what ssh, scp and known_hosts leave out


@dataclass(frozen=True)
class Door:
    """Where a lease is reached: host, port and key are the gateway's, the user is the lease."""

    lease_id: str
    host: str
    port: int
    host_key: str

    @property
    def command(self) -> str:
        """The line to type."""
        return f"ssh -p {self.port} {self.lease_id}@{self.host}"

    @property
    def known_hosts(self) -> str:
        """A line for ``~/.ssh/known_hosts``; empty while the gateway's key is not known."""
        if not self.host_key:
            return ""
        place = self.host if self.port == SSH_PORT else f"[{self.host}]:{self.port}"
        return f"{place} {' '.join(self.host_key.split()[:2])}"

    @property
    def config(self) -> str:
        """A block for ``~/.ssh/config``; after it the lease's id is enough as a host name."""
        return f"Host {self.lease_id}\n  HostName {self.host}\n  Port {self.port}\n  User {self.lease_id}"

    @property
    def scp(self) -> str:
        """Copy a file in."""
        return f"scp -P {self.port} ./data.tar {self.lease_id}@{self._literal}:/workspace/"

    @property
    def rsync(self) -> str:
        """Copy a directory in, and again only what changed."""
        return f"rsync -av -e 'ssh -p {self.port}' ./data/ {self.lease_id}@{self._literal}:/workspace/data/"

    @property
    def forward(self) -> str:
        """Reach a port of the container, for example a notebook, at localhost."""
        return f"ssh -p {self.port} -L 8888:127.0.0.1:8888 {self.lease_id}@{self.host}"

    @property
    def _literal(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host  # the colons of IPv6 would end the host


def door(lease: Lease) -> Door | None:
    """The way in of a lease with ``node`` selected; None before it has a node."""
    node = lease.node
    if node is None:
        return None
    return Door(lease_id=lease.pk, host=node.ssh_host, port=node.ssh_port, host_key=node.ssh_host_key)
