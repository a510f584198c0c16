"""System checks: contradictions in the settings are named."""

from __future__ import annotations

from typing import Any

import pytest

from portal import checks


def ids_of(found: list[Any]) -> list[str]:
    """Ids of the messages."""
    return [message.id for message in found]


@pytest.mark.parametrize("key", ["only-for-tests", "changeme", "a" * 60, "abcd" * 20])
def test_a_weak_secret_key_is_an_error_outside_tests(settings: Any, key: str) -> None:
    settings.SECRET_KEY = key
    assert checks.secret_key(None) == []
    settings.TESTING = False
    assert ids_of(checks.secret_key(None)) == ["portal.E001"]
    settings.SECRET_KEY = "Zr8d0kq2-random-enough-1Ks9qLmv0aQ"
    assert checks.secret_key(None) == []


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:8000", []),
        ("http://127.0.0.1:8000", []),
        ("http://[::1]:8000", []),
        ("http://portal.localhost", []),
        ("https://gpu.example.org", []),
        ("http://gpu.example.org", ["portal.W001"]),
        ("gpu.example.org", ["portal.E002"]),
        ("ftp://gpu.example.org", ["portal.E002"]),
        ("https://u:p@gpu.example.org", ["portal.E002"]),
        ("https://gpu.example.org/?x=1", ["portal.E002"]),
    ],
)
def test_the_portal_url_is_judged(settings: Any, url: str, expected: list[str]) -> None:
    settings.PORTAL_URL = url
    assert ids_of(checks.portal_url(None)) == expected


@pytest.mark.parametrize(
    ("code", "expected"), [("USD", []), ("JPY", []), ("usd", ["portal.E003"]), ("XXQ", ["portal.E003"])]
)
def test_the_currency_is_known(settings: Any, code: str, expected: list[str]) -> None:
    settings.CURRENCY = code
    assert ids_of(checks.currency(None)) == expected


def test_https_without_word_of_the_proxy_is_a_warning(settings: Any) -> None:
    settings.HTTPS, settings.TESTING = True, False
    assert ids_of(checks.tls_by_proxy(None)) == ["portal.W002"]
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    assert checks.tls_by_proxy(None) == []
