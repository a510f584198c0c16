"""Notices of the portal on the open terminals of a lease, each once, also over a restart of the agent."""

from collections.abc import Iterable

from nodes.agent.desired import Notice
from nodes.agent.gateway_link import GatewayDownError, GatewayLink
from nodes.agent.log import logger
from nodes.agent.store import LeaseRecord, Store

REMEMBERED = 50  # ids per lease; the portal names the newest few only


def tell(notices: Iterable[Notice], record: LeaseRecord, gateway: GatewayLink, store: Store) -> None:
    """Have the gateway write what these terminals have not had yet.

    The id is stored before the line is written: of an agent that dies in between, a lost line is better than one that
    comes twice. A gateway that does not answer gets it at the next look.
    """
    new = [notice for notice in notices if notice.id not in record.told]
    if not new:
        return
    before = record.told
    record.told = [*before, *(notice.id for notice in new)][-REMEMBERED:]
    store.save(record)
    for number, notice in enumerate(new):
        try:
            gateway.show(record.lease_id, notice.text)
        except GatewayDownError as error:
            logger.warning("a notice of %s waits: %s", record.lease_id, error)
            record.told = [*before, *(shown.id for shown in new[:number])][-REMEMBERED:]
            store.save(record)
            return
