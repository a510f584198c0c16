"""What a node has of network holders, as leases and the preflight see it."""

from collections.abc import Container
from typing import Protocol

from nodes.agent.engine import ContainerFacts
from nodes.agent.holderbook import Holder


class Holders(Protocol):
    """What a node has of holders, as leases see it."""

    def start(self, kept: Container[str]) -> None:
        """Take over what an earlier agent left (`kept`: the leases that are still here), then keep the pool full."""

    def take(self, name: str, hostname: str) -> Holder | None:
        """A holder for the lease's container `name`, from the pool or made now; None: it needs a network of its own."""

    def given(self, container: ContainerFacts) -> Holder | None:
        """The holder whose network a lease's container should be in; None: nobody knows any more.

        Raises:
            EngineError: it was not written down, and the engine does not tell.
        """

    def release(self, name: str) -> None:
        """Remove the holder of a lease, with its network; a lease that has none is a success.

        Raises:
            EngineError, OSError: it could not be removed; it is tried again at the next start.
        """

    def distrust(self, reason: str) -> None:
        """Give no more holders to leases until the agent starts anew."""


class NoHolders:
    """`Holders` of a node that has none: every lease makes its own network."""

    def start(self, kept: Container[str]) -> None:
        """See Holders."""

    def take(self, name: str, hostname: str) -> Holder | None:
        """See Holders."""

    def given(self, container: ContainerFacts) -> Holder | None:
        """See Holders."""

    def release(self, name: str) -> None:
        """See Holders."""

    def distrust(self, reason: str) -> None:
        """See Holders."""
