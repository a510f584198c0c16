"""The last step of a start beside a holder: the container is where it should be, and has its host name."""

import contextlib
import socket

from nodes.agent.engine import ContainerFacts, Engine
from nodes.agent.failures import LaunchError
from nodes.agent.holderbook import Holder
from nodes.agent.holding import Holders
from nodes.agent.namespaces import inside, network_of


def settle(
    engine: Engine, holders: Holders, container: ContainerFacts, holder: Holder | None, *, hostname: str
) -> None:
    """See that a container that runs is in the network of `holder`, and give it its host name.

    `holder` None: it joined one that nobody knows of, so nothing speaks for the network that it is in.

    Raises:
        LaunchError: it is in another network, and dead by then.
        EngineError: it is, and the engine did not remove it.
    """
    found = network_of(container.pid)
    if found and not (holder and found == holder.network):
        if holder:
            holders.distrust(f"the engine put {container.name} into another network than its holder's")
        engine.remove(container.id)
        raise LaunchError("failed_launch", "The node could not give the lease its network.")
    with contextlib.suppress(OSError):  # it has ended by itself, which its actor sees
        inside(container.pid, "uts", lambda: socket.sethostname(hostname))
