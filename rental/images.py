"""Image references: which ones an order may name. The name is kept exactly as written; nothing is pulled here.

The grammar is that of the distribution project (``[domain[:port]/]path[:tag][@digest]``), read from the right because
a colon may belong to a port, a tag or a digest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_LENGTH = 255  # of name and tag; the engine's own limit for the name, a longer one fails late and unclearly there
MAX_TEXT = 300  # with the digest, as a lease stores it

_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_HOST = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]{{1,5}})?")
_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_IDENTIFIER = re.compile(r"[0-9a-f]{64}")


class BadReferenceError(ValueError):
    """Not an image reference; the message says which part is wrong and what is accepted."""


@dataclass(frozen=True)
class Reference:
    """The parts of a reference; ``text`` is exactly what was written."""

    text: str
    domain: str
    path: str
    tag: str
    digest: str


def parse(text: str) -> Reference:
    """The reference in ``text``, unchanged. Raises BadReferenceError."""
    _refuse_unprintable(text)
    tagged, digest = _split_digest(text)
    name, tag = _split_tag(tagged)
    domain, path = _split_domain(name)
    _check_path(path)
    if len(tagged) > MAX_LENGTH:
        raise BadReferenceError(f"the name is {len(tagged)} characters long; at most {MAX_LENGTH} are accepted")
    if not domain and _IDENTIFIER.fullmatch(path):
        raise BadReferenceError("64 hexadecimal digits are an image id, which other machines do not know; use a name")
    return Reference(text=text, domain=domain, path=path, tag=tag, digest=digest)


def _refuse_unprintable(text: str) -> None:
    if not text:
        raise BadReferenceError("an image is needed, for example debian:12")
    if len(text) > MAX_TEXT:
        raise BadReferenceError(f"{len(text)} characters; at most {MAX_TEXT} are accepted")
    if text != text.strip():
        raise BadReferenceError("remove the blanks around the name")
    for character in text:
        if not "!" <= character <= "~":
            raise BadReferenceError(f"{character!r} cannot be part of an image name")


def _split_digest(text: str) -> tuple[str, str]:
    name, at, digest = text.partition("@")
    if not at:
        return name, ""
    if not _DIGEST.fullmatch(digest):
        raise BadReferenceError("after @ a digest is accepted: sha256: and exactly 64 digits 0-9a-f")
    return name, digest


def _split_tag(name: str) -> tuple[str, str]:
    head, colon, tail = name.rpartition(":")
    if not colon or "/" in tail or tail.endswith("]"):  # the colon of a port, or inside an IPv6 address
        return name, ""
    if not tail:
        raise BadReferenceError("the tag after the colon is missing")
    if not _TAG.fullmatch(tail):
        raise BadReferenceError(f"{tail!r} is no tag: letters, digits and _ . - are accepted, 128 at most")
    return head, tail


def _split_domain(name: str) -> tuple[str, str]:
    first, slash, rest = name.partition("/")
    # As the engine decides it: without a dot, a port or "localhost" the first part is a path on the default registry.
    if not slash or not (first == "localhost" or any(c in first for c in ".:") or first != first.lower()):
        return "", name
    if first in {".", ".."} or not _HOST.fullmatch(first):
        raise BadReferenceError(f"{first!r} is no host of a registry")
    if not any(c in first for c in ".:") and first != "localhost":
        raise BadReferenceError(f"{first!r}: names of images are lower case")
    port = first.rpartition(":")[2] if not first.endswith("]") and ":" in first else "1"
    if not 1 <= int(port) <= 65_535:  # noqa: PLR2004  # TCP's range
        raise BadReferenceError(f"{port} is no port: 1 to 65535 are accepted")
    return first, rest


def _check_path(path: str) -> None:
    for part in path.split("/"):
        if _PART.fullmatch(part):
            continue
        if part.lower() != part and _PART.fullmatch(part.lower()):
            raise BadReferenceError(f"{part!r}: names of images are lower case")
        raise BadReferenceError(
            f"{part!r} is no part of an image name: lower case letters and digits are accepted, and . _ - between them"
        )
