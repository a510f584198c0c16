"""Who in a tenant may do what: the one table. Services, pages, API, docs/api.md and the page of roles all read it.

It imports nothing of ours, so that models can build their queries from it.
"""

from __future__ import annotations

from typing import Final

from django.db import models
from django.utils.translation import gettext_lazy as _


class Role(models.TextChoices):
    """What a member is in a tenant."""

    OWNER = "owner", _("owner")
    ADMIN = "admin", _("admin")
    BILLING = "billing", _("billing")
    MEMBER = "member", _("member")
    VIEWER = "viewer", _("viewer")


class Act(models.TextChoices):
    """What can be done in a tenant."""

    SEE = "see", _("See leases, members and the balance")
    ORDER = "order", _("Order leases, open them by SSH")
    STOP = "stop", _("Stop and extend leases")
    SEE_MONEY = "see_money", _("See every line of the ledger")
    TOP_UP = "top_up", _("Top up")
    CREATE_TOKENS = "create_tokens", _("Create API tokens, never with more than the role")
    INVITE = "invite", _("Invite people, withdraw invitations")
    CHANGE_ROLES = "change_roles", _("Change roles")
    REMOVE = "remove", _("Remove members")
    RENAME = "rename", _("Rename the organisation")
    HAND_OVER = "hand_over", _("Make and unmake owners, hand the organisation over")
    DELETE = "delete", _("Delete the organisation")


EVERYBODY: Final = tuple(Role)
RUNNERS: Final = (Role.OWNER, Role.ADMIN, Role.MEMBER)
PAYERS: Final = (Role.OWNER, Role.ADMIN, Role.BILLING)
LEADERS: Final = (Role.OWNER, Role.ADMIN)

ALLOWED: Final[dict[Act, tuple[Role, ...]]] = {
    Act.SEE: EVERYBODY,
    Act.ORDER: RUNNERS,
    Act.STOP: RUNNERS,
    Act.SEE_MONEY: PAYERS,
    Act.TOP_UP: PAYERS,
    Act.CREATE_TOKENS: EVERYBODY,
    Act.INVITE: LEADERS,
    Act.CHANGE_ROLES: LEADERS,
    Act.REMOVE: LEADERS,
    Act.RENAME: LEADERS,
    Act.HAND_OVER: (Role.OWNER,),
    Act.DELETE: (Role.OWNER,),
}


def may(role: str, act: Act) -> bool:
    """Does the role allow it?"""
    return role in ALLOWED[act]


def may_touch(role: str, *others: str) -> bool:
    """May somebody with ``role`` give or take these roles? Owners are made and unmade by owners only."""
    return Role.OWNER not in others or may(role, Act.HAND_OVER)


def givable(role: str) -> list[Role]:
    """The roles that somebody with ``role`` may give to others."""
    return [other for other in Role if may(role, Act.CHANGE_ROLES) and may_touch(role, other)]
