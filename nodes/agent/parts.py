"""What an actor works with: the node's collaborators in one value, so that tests can hand in their own."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from nodes.agent.contact import Contact
from nodes.agent.engine import Engine
from nodes.agent.gateway_link import GatewayLink
from nodes.agent.gpus import Gpus
from nodes.agent.holding import Holders, NoHolders
from nodes.agent.hostconfig import NodeFacts
from nodes.agent.images import ImagePool
from nodes.agent.portal import PortalClient
from nodes.agent.probe import Prover
from nodes.agent.store import Store
from nodes.agent.volumes import Volumes


@dataclass(frozen=True)
class Parts:
    """One node's collaborators; all are safe to use from several threads."""

    engine: Engine
    images: ImagePool
    volumes: Volumes
    gateway: GatewayLink
    gpus: Gpus
    prover: Prover
    portal: PortalClient
    contact: Contact
    store: Store
    threads: ThreadPoolExecutor  # for the steps of a launch that need not wait for one another
    node_facts: Callable[[], NodeFacts]
    on_driver_fault: Callable[[], None]
    holders: Holders = field(default_factory=NoHolders)
    cleaning_limit_s: float = 30.0
    watch_s: float = 15.0  # an exit is told by the engine's events; this is the net below them
