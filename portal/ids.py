"""Public ids: a short prefix that tells the kind, then randomness that nobody can guess or count through."""

import secrets

# No vowels (no words by accident), none of 0/o/1/l/i (read aloud, typed by hand). 27 letters, 16 of them: 76 bits.
ALPHABET = "bcdfghjkmnpqrstvwxz23456789"


def new_id(prefix: str) -> str:
    """``prefix-`` and 16 random letters, for example ``ls-7f3k9qbcd2mnxr4t``."""
    return f"{prefix}-" + "".join(secrets.choice(ALPHABET) for _ in range(16))


def user_id() -> str:
    """A new id for a user."""
    return new_id("us")


def tenant_id() -> str:
    """A new id for a tenant."""
    return new_id("tn")


def invitation_id() -> str:
    """A new id for an invitation."""
    return new_id("iv")


def ssh_key_id() -> str:
    """A new id for an SSH key."""
    return new_id("sk")


def token_id() -> str:
    """A new id for an API token."""
    return new_id("at")


def node_id() -> str:
    """A new id for a node."""
    return new_id("nd")


def lease_id() -> str:
    """A new id for a lease; it is also the SSH user name, so it stays a valid Unix name."""
    return new_id("ls")


def quote_id() -> str:
    """A new id for a quote."""
    return new_id("qt")


def top_up_id() -> str:
    """A new id for a top-up."""
    return new_id("tu")
