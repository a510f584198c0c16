"""The states of a lease and the only steps between them. Pure: no Django models, no clock.

``NEXT`` is the whole table; rental/lifecycle.py is the only writer. docs/lease-lifecycle.md explains each edge.
"""

from typing import Final

from django.db import models
from django.utils.translation import gettext_lazy as _


class State(models.TextChoices):
    """Where a lease stands."""

    REQUESTED = "requested", _("Requested")
    ASSIGNED = "assigned", _("Assigned")
    STARTING = "starting", _("Starting")
    RUNNING = "running", _("Running")
    STOPPING = "stopping", _("Stopping")
    ENDED = "ended", _("Ended")
    INTERRUPTED = "interrupted", _("Interrupted")


class EndReason(models.TextChoices):
    """Why a lease ended; exactly one, set on the way out."""

    RELEASED = "released", _("released by the renter")
    IDLE = "idle", _("released because it was idle")
    MAX_DURATION = "max_duration", _("maximum duration reached")
    WINDOW_OVER = "window_over", _("end of the reserved window")
    PREEMPTED = "preempted", _("gave way to a higher class")
    FUNDS = "funds", _("balance used up")
    CANCELLED = "cancelled", _("cancelled before it ran")
    FAILED_IMAGE = "failed_image", _("the image could not be had")
    FAILED_LAUNCH = "failed_launch", _("the container could not be started")
    FAILED_GPU = "failed_gpu", _("the GPU could not be used")
    NODE_LOST = "node_lost", _("the node was lost")
    OPERATOR = "operator", _("ended by the operator")
    TENANT_SUSPENDED = "tenant_suspended", _("the account was suspended")


NEXT: Final[dict[str, frozenset[str]]] = {
    State.REQUESTED: frozenset({State.ASSIGNED, State.STOPPING, State.ENDED}),
    State.ASSIGNED: frozenset({State.STARTING, State.STOPPING, State.ENDED, State.INTERRUPTED}),
    State.STARTING: frozenset({State.RUNNING, State.STOPPING, State.ENDED, State.INTERRUPTED}),
    State.RUNNING: frozenset({State.STOPPING, State.INTERRUPTED}),
    State.STOPPING: frozenset({State.ENDED, State.INTERRUPTED}),
    State.INTERRUPTED: frozenset({State.REQUESTED, State.ENDED}),
    State.ENDED: frozenset(),
}
LIVE: Final = (State.ASSIGNED, State.STARTING, State.RUNNING, State.STOPPING)  # a node is expected to know it
OPEN: Final = (State.REQUESTED, *LIVE, State.INTERRUPTED)  # not over
BEFORE_READY: Final = (State.REQUESTED, State.ASSIGNED, State.STARTING)


class Gap(models.TextChoices):
    """Why a stretch of a lease was not charged."""

    STARTING = "starting", _("before it was ready")
    SSH_DOWN = "ssh_down", _("no way in by SSH")
    PAUSED_VRAM = "paused_vram", _("paused")
    GPU_LOST = "gpu_lost", _("a GPU failed")
    NODE_SILENT = "node_silent", _("no contact with the node")
    OPERATOR_MOVE = "operator_move", _("moved by the operator")
    STOPPING = "stopping", _("being stopped and cleaned")


# Recorded as rows while a lease runs; the other two follow from its own times.
RECORDED_GAPS: Final = (Gap.SSH_DOWN, Gap.PAUSED_VRAM, Gap.GPU_LOST, Gap.NODE_SILENT, Gap.OPERATOR_MOVE)
