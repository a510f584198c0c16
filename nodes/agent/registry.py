"""How long a registry that has refused a pull wants to be left alone.

Engines pass a registry's refusal on without its headers, so `Retry-After` is asked for once more, without credentials
and without following redirects. Only the status and that header are read.
"""

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import requests

TIMEOUT_S = 5.0
TOO_MANY_REQUESTS = 429
HUB, HUB_ENDPOINT = "docker.io", "registry-1.docker.io"
_IN_TEXT = re.compile(r"retry[- ]after:? *([0-9.]+) *(ms|µs|us|ns|m|s)?", re.IGNORECASE)
_UNITS = {"ms": 1e-3, "µs": 1e-6, "us": 1e-6, "ns": 1e-9, "m": 60.0}


def retry_after_in(text: str) -> float | None:
    """Seconds that a refusal names itself, as ghcr.io and ECR do ("retry-after: 128ms"); None when it names none."""
    found = _IN_TEXT.search(text)
    try:
        return float(found[1]) * _UNITS.get((found[2] or "s").lower(), 1.0) if found else None
    except ValueError:
        return None  # "1.2.3"


def ask_retry_after(image: str, *, plain_http: bool) -> float | None:
    """Seconds to wait before the next pull of `image`, by the registry's own header; None when it says nothing.

    `plain_http`: the engine may talk to that registry without TLS.
    """
    host, name, reference = manifest_of(image)
    url = f"{'http' if plain_http else 'https'}://{host}/v2/{name}/manifests/{reference}"
    try:
        with requests.Session() as session:
            session.trust_env = False  # no password from a .netrc; the proxy is the engine's affair
            answer = session.head(url, timeout=TIMEOUT_S, allow_redirects=False)
    except requests.RequestException:
        return None
    return _seconds(answer.headers.get("Retry-After", "")) if answer.status_code == TOO_MANY_REQUESTS else None


def manifest_of(image: str) -> tuple[str, str, str]:
    """Host (with port), repository and tag or digest of an image name, as engines resolve it."""
    name, reference = split_reference(image)
    first, slash, rest = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        first, rest = HUB, name if slash else f"library/{name}"
    return HUB_ENDPOINT if first == HUB else first, rest, reference


def split_reference(image: str) -> tuple[str, str]:
    """Name and tag (or digest) as the engine's API wants them; a name without a tag means `latest`, not all tags.

    Of a name with tag and digest the digest alone decides.
    """
    name, at, digest = image.partition("@")
    host, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    return host + slash + last, digest if at else tag or "latest"


def _seconds(header: str) -> float | None:
    if header.isdigit():
        return float(header)
    try:
        return max(0.0, (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None
