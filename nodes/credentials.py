"""The three secrets of a node: enrolment token, node token, broker password. Shown once; we keep their SHA-256."""

import hashlib
import secrets

ENROLMENT_PREFIX = "lne_"
NODE_PREFIX = "lnt_"
RANDOM_BYTES = 32


def new_enrolment_secret() -> str:
    """``lne_…``: turns one machine into one node, once."""
    return ENROLMENT_PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def new_node_secret() -> str:
    """``lnt_…``: the bearer token of a node."""
    return NODE_PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def new_broker_password() -> str:
    """Letters and digits only: it travels inside a URL."""
    return secrets.token_hex(RANDOM_BYTES)


def digest(secret: str) -> str:
    """SHA-256, hex. The secrets are random and long, so a slow hash would add nothing; Redis takes the same form."""
    return hashlib.sha256(secret.encode()).hexdigest()
