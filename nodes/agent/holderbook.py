"""A network holder as a value, and who has which: a directory for each lease that joined one, with its files of /etc.

The entry is written before the lease's container is made and removed after both are gone.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface
from pathlib import Path

from nodes.agent import links
from nodes.agent.engine import ContainerFacts
from nodes.agent.holderbox import lease_files
from nodes.agent.namespaces import network_of
from nodes.agent.network import holder_interface

PREFIX = "lessor-holder-"
BOOK = "holders"  # the directory of the book, under STATE
OWNER = "holder"  # the file that says which holder a lease has


@dataclass(frozen=True)
class Holder:
    """A network that is ready. `pid` is a process inside, `network` the namespace's inode number, `files` the directory
    with the lease's files of /etc once it has been taken."""

    name: str
    container_id: str
    pid: int
    network: int
    address: IPv4Interface
    files: Path = Path()

    @property
    def interface(self) -> str:
        """The node's end."""
        return holder_interface(self.name)

    @property
    def lives(self) -> bool:
        """Whether its process is there, in its own namespace."""
        return bool(self.network) and network_of(self.pid) == self.network

    @property
    def works(self) -> bool:
        """Whether it lives and is joined to the node."""
        return self.lives and links.is_connected(self.interface)


class HolderBook:
    """The entries under one directory; the name of a lease's container is the key."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self) -> Mapping[str, Holder]:
        """Every readable entry, as remembered: all of the holder but its process; a damaged one is removed."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = {}
        for entry in self._directory.iterdir():
            if holder := self.read(entry.name):
                found[entry.name] = holder
            else:
                shutil.rmtree(entry)
        return found

    def read(self, name: str) -> Holder | None:
        """The entry of a lease, as remembered."""
        entry = self._directory / name
        try:
            # Entries of before the network was written down have two words.
            holder, address, *network = (entry / OWNER).read_text().split()
            return Holder(holder, "", 0, int(network[0]) if network else 0, IPv4Interface(address), entry)
        except (OSError, ValueError):
            return None

    def write(self, name: str, holder: Holder, hostname: str, resolvers: tuple[str, ...]) -> Holder:
        """Give a holder to a lease; returns it with its files."""
        entry = self._directory / name
        entry.mkdir(mode=0o700)
        (entry / OWNER).write_text(_words(holder))
        for file, content in lease_files(hostname, str(holder.address.ip), resolvers).items():
            (entry / file).write_text(content)
            (entry / file).chmod(0o644)
        return replace(holder, files=entry)

    def recall(self, name: str, holder: Holder) -> None:
        """Write the entry of a lease that is found to have joined a holder without one."""
        entry = self._directory / name
        entry.mkdir(mode=0o700, exist_ok=True)
        (entry / OWNER).write_text(_words(holder))

    def remove(self, name: str) -> None:
        """Forget a lease and its files."""
        shutil.rmtree(self._directory / name, ignore_errors=True)

    def clear(self) -> None:
        """Forget everything."""
        shutil.rmtree(self._directory, ignore_errors=True)


def _words(holder: Holder) -> str:
    return f"{holder.name} {holder.address} {holder.network}"


def holder_of(facts: ContainerFacts) -> Holder | None:
    """A holder as it is now; None when it has ended, or has no address."""
    address = links.address_of(facts.pid) if facts.pid else None
    if not address:
        return None
    return Holder(facts.name, facts.id, facts.pid, network_of(facts.pid), address)


def joined(facts: ContainerFacts) -> str:
    """The id of the container whose network a container uses; empty where it has its own."""
    return str(facts.inspect["HostConfig"].get("NetworkMode", "")).partition("container:")[2]
