"""API tokens: what they look like, what they may do, how they are made, found and revoked. Only a digest is stored."""

from __future__ import annotations

import hashlib
import secrets
import zlib
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from django.db import transaction
from django.db.models import F
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from portal import token_use
from portal.errors import InvalidInput, NotAllowed
from portal.models import ApiToken, Membership, Tenant, User
from portal.ready import Ready
from portal.services import audit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django.db.models import QuerySet

    from portal.actor import Actor

MARK: Final = "lsr_"  # secret scanners find leaked tokens by it
LETTERS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
RANDOM_LETTERS: Final = 32  # 190 bits
CHECK_LETTERS: Final = 6  # CRC-32 in base 62: a mistyped token is refused without asking the database
PREFIX_LETTERS: Final = 12
MAX_NAME: Final = 80
MAX_LIFE: Final = timedelta(days=3660)

SCOPES: Final = {
    "offers:read": _("See offers and prices, ask for quotes"),
    "leases:read": _("See leases, their events and receipts"),
    "leases:write": _("Start, keep and stop leases; this spends money"),
    "keys:read": _("See SSH keys"),
    "keys:write": _("Add and remove SSH keys"),
    "tokens:read": _("See API tokens, without their secrets"),
    "tokens:write": _("Create and revoke API tokens, up to its own scopes"),
    "billing:read": _("See balance and ledger"),
    "billing:write": _("Set the spend cap of the month"),
    "tenants:read": _("See the tenant, its members and invitations"),
    "tenants:write": _("Invite people, change roles, remove members; delete the organisation"),
}


def new_secret() -> str:
    """``lsr_``, 32 random letters, and their checksum."""
    body = "".join(secrets.choice(LETTERS) for _ in range(RANDOM_LETTERS))
    return MARK + body + _checksum(body)


def digest(secret: str) -> str:
    """What is stored: SHA-256, hex. The secret is random, so it needs no salt and no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


def prefix_of(secret: str) -> str:
    """The letters by which its owner recognises a token."""
    return secret[:PREFIX_LETTERS]


def looks_right(secret: str) -> bool:
    """Mark, length, letters and checksum fit."""
    body = secret.removeprefix(MARK)
    if len(secret) != len(MARK) + RANDOM_LETTERS + CHECK_LETTERS or len(body) != RANDOM_LETTERS + CHECK_LETTERS:
        return False
    return body.isascii() and body.isalnum() and _checksum(body[:RANDOM_LETTERS]) == body[RANDOM_LETTERS:]


def find(secret: str) -> ApiToken | None:
    """The usable token with this secret, its user, tenant and ``role`` loaded (one query; none for a malformed secret).

    ``role`` is the user's in the tenant, from the membership that usable() asks for.
    """
    if not looks_right(secret):
        return None
    found: list[ApiToken] = _BY_DIGEST.rows(digest=digest(secret), now=timezone.now())
    return found[0] if found else None


def _by_digest(digest: str, now: datetime) -> QuerySet[ApiToken]:
    found = ApiToken.objects.usable(now).filter(digest=digest).annotate(role=F("tenant__memberships__role"))
    return found.select_related("user", "tenant").order_by()  # a digest is unique: nothing to sort


# Every call of the API asks this.
_BY_DIGEST: Final = Ready(_by_digest, digest="?digest", now=datetime(2000, 1, 1, tzinfo=UTC))


@transaction.atomic
def create_token(
    *, user: User, tenant: Tenant, name: str, scopes: Sequence[str], expires_at: datetime | None, actor: Actor
) -> tuple[ApiToken, str]:
    """A new token of the user in the tenant, and its secret, which exists nowhere else.

    InvalidInput names the field; NotAllowed ``scope_missing`` when a token asks for more than it has itself.
    """
    name = _checked_name(name)
    wanted = _checked_scopes(scopes, actor.token)
    _check_expiry(expires_at)
    _check_home(user, tenant, actor.token)
    secret = new_secret()
    token = ApiToken.objects.create(
        user=user,
        tenant=tenant,
        name=name,
        prefix=prefix_of(secret),
        digest=digest(secret),
        scopes=wanted,
        expires_at=expires_at,
    )
    token_use.know(token, actor.ip)  # where it is made is no new place
    ends = expires_at.isoformat() if expires_at else None
    audit(actor=actor, action="token.created", obj=token, tenant=tenant, data={"scopes": wanted, "expires_at": ends})
    return token, secret


@transaction.atomic
def revoke(*, token: ApiToken, actor: Actor) -> ApiToken:
    """From now on the token opens nothing. Revoking twice changes nothing."""
    changed = ApiToken.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=timezone.now())
    token.refresh_from_db(fields=["revoked_at"])
    if changed:
        audit(actor=actor, action="token.revoked", obj=token, tenant=token.tenant, data={"prefix": token.prefix})
    return token


def _checked_name(name: str) -> str:
    name = name.strip()
    if not name or len(name) > MAX_NAME or not name.isprintable():
        raise InvalidInput.field("name", str(_("Give 1 to %d visible letters.") % MAX_NAME))
    return name


def _checked_scopes(scopes: Iterable[str], creator: ApiToken | None) -> list[str]:
    wanted = sorted(set(scopes))
    unknown = [scope for scope in wanted if scope not in SCOPES]
    if unknown or not wanted:
        said = f"Unknown: {', '.join(unknown)}. " if unknown else "Choose at least one. "
        raise InvalidInput.field("scopes", f"{said}There are: {', '.join(SCOPES)}.")
    beyond = [scope for scope in wanted if creator is not None and scope not in creator.scopes]
    if beyond:
        sentence = f"This token cannot give what it does not have: {', '.join(beyond)}."
        raise NotAllowed(sentence, code="scope_missing", extra={"scopes": beyond})
    return wanted


def _check_expiry(expires_at: datetime | None) -> None:
    now = timezone.now()
    if expires_at is not None and not now < expires_at <= now + MAX_LIFE:
        raise InvalidInput.field("expires_at", f"Must lie in the future, at most {MAX_LIFE.days} days away; or null.")


def _check_home(user: User, tenant: Tenant, creator: ApiToken | None) -> None:
    if not Membership.objects.filter(user=user, tenant=tenant).exists():
        raise NotAllowed("You are not a member of this tenant.")
    if creator is not None and creator.tenant_id != tenant.pk:
        raise NotAllowed("A token creates tokens for its own tenant only.")


def _checksum(body: str) -> str:
    number = zlib.crc32(body.encode())
    letters = ""
    for _i in range(CHECK_LETTERS):
        number, rest = divmod(number, len(LETTERS))
        letters = LETTERS[rest] + letters
    return letters
