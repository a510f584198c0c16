"""What execd may enter: the containers of leases that our own state says run."""

from nodes.agent.desired import container_name
from nodes.agent.engine import Engine
from nodes.agent.execd import RunningContainer
from nodes.agent.failures import EngineError
from nodes.agent.reconciler import Reconciler

REACHABLE = ("started", "running", "stopping")
ADOPTION_WAIT_S = 10.0  # less than sessions of an earlier agent wait to be taken over (execd.ATTACH_LIMIT_S)


def running_container(reconciler: Reconciler, engine: Engine, lease_id: str) -> RunningContainer | None:
    """The container of a lease, None where it does not run here.

    An agent that has just started first sees what an earlier one left: who logs in meanwhile waits for that, not longer
    than `ADOPTION_WAIT_S`.
    """
    reconciler.has_adopted(ADOPTION_WAIT_S)
    for record in reconciler.records():
        if record.lease_id == lease_id and record.phase in REACHABLE:
            try:
                facts = engine.inspect(container_name(lease_id, record.generation))
            except EngineError:
                return None
            return RunningContainer(lease_id, facts.id, facts.pid) if facts and facts.pid else None
    return None
