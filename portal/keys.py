"""SSH public keys: reading what people paste, judging its strength, adding and removing.

Nothing of a paste that is refused is echoed, logged or stored: it may be a private key or a password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import asyncssh
from django.db import IntegrityError, transaction
from django.utils.translation import gettext as _

from portal.errors import DomainError, InvalidInput
from portal.models import SshKey, User
from portal.services import audit
from portal.signals import ssh_keys_changed

if TYPE_CHECKING:
    from portal.actor import Actor

MAX_TEXT: Final = 16_384  # bytes; an RSA 8192 line has 1,400
MAX_NAME: Final = 80
MAX_KEYS: Final = 100  # per user; every connection to a lease compares them all
LEAST_RSA: Final = 3072
MOST_RSA: Final = 8192
ACCEPTED: Final = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
    "ssh-rsa",
)
PRIVATE: Final = re.compile(
    r"PRIVATE KEY-----|PRIVATE KEY ----|^PuTTY-User-Key-File-|^Private-Lines:|^openssh-key-v1", re.I | re.M
)
TYPE_WORD: Final = re.compile(r"[a-z][a-z0-9-]*(@[a-z0-9.-]+)?", re.I)
BASE64: Final = re.compile(r"[A-Za-z0-9+/]+={0,2}")
SSH2_BEGIN: Final = "---- BEGIN SSH2 PUBLIC KEY ----"
SSH2_END: Final = "---- END SSH2 PUBLIC KEY ----"
LINE_ENDS: Final = re.compile("\r\n|\r|\n|\x85|\u2028|\u2029|\x0b|\x0c|\x00")
BLANKS: Final = " \t\u00a0\ufeff"


@dataclass(frozen=True)
class PublicKey:
    """A key that was read and found good. ``line`` is the type and the base64, nothing else."""

    key_type: str
    line: str
    fingerprint: str
    comment: str


def read_public_key(text: str) -> PublicKey:
    """The one key in ``text``; InvalidInput for the field ``public_key`` says what is wrong and never repeats the text.

    Repaired: byte order mark, CR, no-break spaces around, base64 wrapped over lines, the SSH2 block form.
    """
    _refuse_oversize(text)
    _refuse_private(text)
    lines = [line.strip(BLANKS) for line in LINE_ENDS.split(text)]
    lines = [line for line in lines if line]
    if not lines:
        raise _wrong(_("Paste the content of the file that ends in .pub."))
    key_type, data, comment = _ssh2(lines) if lines[0] == SSH2_BEGIN else _one_line(lines)
    blob = _decode(data)
    _judge(key_type, blob)
    canonical = f"{key_type} {base64.b64encode(blob).decode()}"
    return PublicKey(key_type=key_type, line=canonical, fingerprint=fingerprint(blob), comment=comment)


def fingerprint(blob: bytes) -> str:
    """``SHA256:…`` as ``ssh-keygen -lf`` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def add_key(*, user: User, name: str, text: str, actor: Actor) -> SshKey:
    """Store a key of the user; running leases learn it. InvalidInput for a bad key or name, 409 ``duplicate`` else."""
    read = read_public_key(text)
    name = _checked_name(name or read.comment or read.key_type)
    try:
        with transaction.atomic():
            User.objects.select_for_update().get(pk=user.pk)  # the count below holds against a second request
            if user.ssh_keys.count() >= MAX_KEYS:
                raise InvalidInput.field("public_key", _("You have %d keys; remove one first.") % MAX_KEYS)
            key = SshKey.objects.create(
                user=user, name=name, key_type=read.key_type, line=read.line, fingerprint=read.fingerprint
            )
            audit(actor=actor, action="ssh_key.added", obj=key, data={"name": name, "fingerprint": key.fingerprint})
            transaction.on_commit(lambda: ssh_keys_changed.send(sender=SshKey, user=user))
    except IntegrityError as error:
        raise DomainError(_("You have this key already."), code="duplicate") from error
    return key


@transaction.atomic
def remove_key(*, key: SshKey, actor: Actor) -> None:
    """Forget a key; open sessions made with it end within seconds, leases keep running."""
    user = key.user
    audit(actor=actor, action="ssh_key.removed", obj=key, data={"name": key.name, "fingerprint": key.fingerprint})
    key.delete()
    transaction.on_commit(lambda: ssh_keys_changed.send(sender=SshKey, user=user))


# --- reading ----------------------------------------------------------------------------------------------------------


def _wrong(sentence: str, code: str = "invalid_key") -> InvalidInput:
    return InvalidInput.field("public_key", sentence, code=code)


def _accepted() -> str:
    facts = {"types": ", ".join(ACCEPTED[:-1]), "least": LEAST_RSA, "most": MOST_RSA}
    return _("Accepted: %(types)s, ssh-rsa from %(least)d to %(most)d bits.") % facts


def _damaged() -> InvalidInput:
    return _wrong(_("The key is cut short or damaged. Copy the whole line of the .pub file."))


def _refuse_oversize(text: str) -> None:
    if len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT:
        raise _wrong(_("Too long for a public key: at most %d bytes.") % MAX_TEXT, "too_large")


def _refuse_private(text: str) -> None:
    if PRIVATE.search(text):
        sentence = _(
            "This looks like a private key. It was not stored. It has left your machine, so replace the pair: "
            "run ssh-keygen and paste the file that ends in .pub."
        )
        raise _wrong(sentence, "private_key")


def _one_line(lines: list[str]) -> tuple[str, str, str]:
    """Type, base64 and comment of an authorized_keys line whose base64 may be wrapped over further lines."""
    words = lines[0].split()
    if not TYPE_WORD.fullmatch(words[0]) or "=" in words[0]:
        raise _wrong(f"{_('A public key starts with its type; options are not accepted.')} {_accepted()}")
    key_type = words[0].lower()
    _check_type(key_type)
    data, comment = (words[1] if len(words) > 1 else ""), " ".join(words[2:])
    for line in lines[1:]:
        # Whatever else a second line may be, it is not a piece of base64: it never reaches authorized_keys.
        if comment or not BASE64.fullmatch(line.split()[0]) or data.endswith("="):
            raise _wrong(_("One key per entry: there is something after the first line."), "more_than_one_line")
        data, comment = data + line.split()[0], " ".join(line.split()[1:])
    return key_type, data, comment


def _ssh2(lines: list[str]) -> tuple[str, str, str]:
    """Type, base64 and comment of an RFC 4716 block, the form PuTTYgen saves."""
    if lines[-1] != SSH2_END or lines.count(SSH2_BEGIN) != 1 or lines.count(SSH2_END) != 1:
        raise _wrong(_("One key per entry: the SSH2 block must be whole and alone."), "more_than_one_line")
    comment, data, continued = "", "", False
    for line in lines[1:-1]:
        if continued or ":" in line:
            if line.lower().startswith("comment:"):
                comment = line.partition(":")[2].strip().strip('"')
            continued = line.endswith("\\")
        else:
            data += line
    blob = _decode(data)
    key_type = _first_string(blob)
    _check_type(key_type)
    return key_type, data, comment


def _check_type(key_type: str) -> None:
    if key_type in ACCEPTED:
        return
    if "-cert-v" in key_type:
        raise _wrong(_("This is a certificate, not a key. Paste the key itself (the .pub file without -cert)."))
    if key_type == "ssh-dss":
        raise _wrong(f"{_('DSA keys are too weak.')} {_accepted()}", "weak_key")
    raise _wrong(f"{_('This is not a key type we know.')} {_accepted()}")


def _decode(data: str) -> bytes:
    try:
        blob = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        # From None: the original error may show pieces of what was pasted in a traceback.
        raise _damaged() from None
    if not blob:
        raise _damaged()
    return blob


def _first_string(blob: bytes) -> str:
    """The first SSH string of a key blob, its type; empty when there is none."""
    if len(blob) < 4:  # noqa: PLR2004  # the length field of an SSH string
        return ""
    (length,) = struct.unpack(">I", blob[:4])
    return blob[4 : 4 + length].decode("ascii", "replace") if length <= len(blob) - 4 else ""


# --- judging ----------------------------------------------------------------------------------------------------------


def _judge(key_type: str, blob: bytes) -> None:
    if _first_string(blob) != key_type:
        raise _wrong(_("The key's type and its content do not match. Copy the whole line of the .pub file."))
    if key_type == "ssh-rsa":
        _judge_rsa(blob)
    try:
        # Parses by cryptography: curve points, lengths, trailing bytes.
        parsed = asyncssh.import_public_key(f"{key_type} {base64.b64encode(blob).decode()}")
    except (asyncssh.KeyImportError, ValueError, OverflowError):
        raise _damaged() from None
    if parsed.public_data != blob:
        raise _wrong(_("The key is damaged: there is more in it than a key."))


def _judge_rsa(blob: bytes) -> None:
    """Size and exponent, read from the blob itself, so that a monster is refused before any library multiplies it."""
    parts: list[bytes] = []
    rest = blob
    while rest and len(parts) < 4:  # noqa: PLR2004  # type, exponent, modulus; a fourth would be too many
        if len(rest) < 4 or len(rest) - 4 < (length := struct.unpack(">I", rest[:4])[0]):  # noqa: PLR2004
            raise _damaged()
        parts.append(rest[4 : 4 + length])
        rest = rest[4 + length :]
    if len(parts) != 3:  # noqa: PLR2004
        raise _damaged()
    exponent, modulus = int.from_bytes(parts[1]), int.from_bytes(parts[2])
    bits = modulus.bit_length()
    if not LEAST_RSA <= bits <= MOST_RSA:
        raise _wrong(
            _("RSA with %(bits)d bits: from %(least)d to %(most)d are accepted; Ed25519 is better.")
            % {"bits": bits, "least": LEAST_RSA, "most": MOST_RSA},
            "weak_key",
        )
    if exponent < 3 or exponent % 2 == 0 or modulus % 2 == 0:  # noqa: PLR2004  # not RSA at all, or trivially broken
        raise _wrong(_("This RSA key is broken; make a new one with ssh-keygen -t ed25519."), "weak_key")


def _checked_name(name: str) -> str:
    name = " ".join(name.split())[:MAX_NAME]
    if not name or not name.isprintable():
        raise InvalidInput.field("name", _("Give 1 to %d visible letters.") % MAX_NAME)
    return name
