"""Holders that are only written down: a node's book of them, without a network or a container behind."""

from collections.abc import Container
from ipaddress import IPv4Interface
from pathlib import Path

from nodes.agent.holderbook import Holder, HolderBook
from nodes.agent.holders import HolderPool
from nodes.agent.nest import Nest
from tests.nodes.agent.fake_engine import FakeEngine

NAME, ID = "lessor-holder-1", "a" * 64
ADDRESS = IPv4Interface("10.231.0.6/30")


class WrittenHolders(HolderPool):
    """Gives every lease the holder NAME, whose network is said to be `network`."""

    def __init__(self, engine: FakeEngine, directory: Path, network: int) -> None:
        self.book = HolderBook(directory / "holders")
        self.book.open()
        nest = Nest(engine, "nd-test", directory / "no-program")
        super().__init__(engine, "nd-test", nest, self.book, None, 0)
        self.network = network
        self.distrusted = ""

    def start(self, kept: Container[str]) -> None:
        """Nothing runs."""

    def take(self, name: str, hostname: str) -> Holder | None:
        """Written down as on a node."""
        return self.book.write(name, Holder(NAME, ID, 1, self.network, ADDRESS), hostname, ())

    def release(self, name: str) -> None:
        """Only the entry is there."""
        self.book.remove(name)

    def distrust(self, reason: str) -> None:
        """Remembered."""
        self.distrusted = reason
