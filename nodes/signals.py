"""What other apps may want to hear about hardware. Sent after commit; a receiver that fails is only logged."""

import logging
from functools import partial

from django.db import transaction
from django.dispatch import Signal

logger = logging.getLogger(__name__)

# gpu=Gpu: it was healthy and is now lost or quarantined. Leases on it are rental's to end.
gpu_lost = Signal()
# node=Node: its token is void from now on. Leases on it are rental's to end.
node_revoked = Signal()
# node=Node, events=list[SshEvent]: its SSH gateway saw them. Which leases and keys they are about is rental's to know.
ssh_seen = Signal()


def send_after_commit(signal: Signal, **facts: object) -> None:
    """Send once the current transaction has committed; nothing after a rollback."""
    transaction.on_commit(partial(_send, signal, facts))


def _send(signal: Signal, facts: dict[str, object]) -> None:
    for receiver, answer in signal.send_robust(sender=None, **facts):
        if isinstance(answer, Exception):
            logger.error("signal receiver %r failed", receiver, exc_info=answer)
