"""Domain errors: what a service refuses, sorted by who can mend it. Views and the API turn them into answers."""

from __future__ import annotations

from typing import Any


class DomainError(Exception):
    """A refusal with a stable ``code``, an HTTP ``status``, a sentence for people, and optional facts.

    ``errors`` maps a field name to sentences; ``extra`` is merged into the problem document.
    """

    status = 409
    code = "conflict"

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        errors: dict[str, list[str]] | None = None,
        extra: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or self.code
        self.errors = errors or {}
        self.extra = extra or {}


class InvalidInput(DomainError):
    """A field is wrong; ``errors`` names it and what is accepted."""

    status = 400
    code = "invalid"

    @classmethod
    def field(cls, name: str, sentence: str, *, code: str | None = None) -> InvalidInput:
        """One wrong field."""
        return cls(f"{name}: {sentence}", code=code, errors={name: [sentence]})


class InsufficientFunds(DomainError):
    """The balance does not cover the hold."""

    status = 402
    code = "insufficient_funds"


class NotAllowed(DomainError):
    """The object is the caller's to see, but the role or scope does not allow this."""

    status = 403
    code = "not_allowed"


class NotFound(DomainError):
    """No such object, or none that the caller may know of."""

    status = 404
    code = "not_found"


class NoCapacity(DomainError):
    """Nothing free fits now; ``extra["reasons"]`` says why."""

    code = "no_capacity"


class OfferChanged(DomainError):
    """The quote has expired or the hardware behind it has changed; ask for a new one."""

    code = "offer_changed"


class IllegalTransition(DomainError):
    """The object's state does not allow this step."""

    code = "illegal_state"


class TooLarge(DomainError):
    """The body is larger than any request of ours needs to be."""

    status = 413
    code = "too_large"


class TooManyRequests(DomainError):
    """Too often; ``retry_after`` seconds later it may be tried again."""

    status = 429
    code = "too_many_requests"

    def __init__(self, detail: str, *, retry_after: int) -> None:
        self.retry_after = max(1, retry_after)
        super().__init__(detail, extra={"retry_after_s": self.retry_after})
