"""Secrets that must be readable again, sealed before they are stored: seeds of second factors.

The key comes from SECRET_KEY, so a stolen database alone gives no codes. After a change of SECRET_KEY, what was sealed
under the old one stays readable while that stands in SECRET_KEY_FALLBACKS.
"""

from __future__ import annotations

import base64

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.utils.crypto import salted_hmac

PURPOSE = "lessor.sealing"


def seal(text: str) -> str:
    """Encrypt and sign."""
    return _box().encrypt(text.encode()).decode()


def unseal(sealed: str) -> str:
    """The text again. ValueError when no key of ours made it."""
    try:
        return _box().decrypt(sealed.encode()).decode()
    except InvalidToken as error:
        raise ValueError("A stored secret was sealed under another SECRET_KEY; see SECRET_KEY_FALLBACKS.") from error


def _box() -> MultiFernet:
    return MultiFernet([Fernet(_key(secret)) for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)])


def _key(secret: str | bytes) -> bytes:
    return base64.urlsafe_b64encode(salted_hmac(PURPOSE, "key", secret=secret, algorithm="sha256").digest())
