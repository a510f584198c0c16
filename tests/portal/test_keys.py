"""SSH public keys: what is read, what is refused, and that nothing refused survives (A01, A02, A04, A06, A07)."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import subprocess
import textwrap
from typing import TYPE_CHECKING

import pytest
from django.core import serializers
from hypothesis import given
from hypothesis import strategies as st

from portal import keys, signals
from portal.actor import Actor
from portal.errors import DomainError, InvalidInput
from portal.models import AuditEvent, SshKey
from tests import make

if TYPE_CHECKING:
    from pathlib import Path

    from django.test import Client
    from pytest_django import DjangoCaptureOnCommitCallbacks

    from portal.models import User
    from tests.clients import ApiClient

GENERATED = [("ed25519", 256), ("ecdsa", 256), ("ecdsa", 384), ("ecdsa", 521), ("rsa", 3072)]


def string(value: bytes) -> bytes:
    """An SSH string."""
    return struct.pack(">I", len(value)) + value


def mpint(value: int) -> bytes:
    """An SSH integer."""
    return string(value.to_bytes(value.bit_length() // 8 + 1))


def line(*parts: bytes, kind: str = "") -> str:
    """A public key line; the first part is the type as an SSH string."""
    blob = b"".join(parts)
    (length,) = struct.unpack(">I", blob[:4])
    return f"{kind or blob[4 : 4 + length].decode()} {base64.b64encode(blob).decode()}"


def rsa_line(bits: int, exponent: int = 65537) -> str:
    """An RSA line of that size; the modulus is odd and not a product of anything in particular."""
    return line(string(b"ssh-rsa"), mpint(exponent), mpint((1 << (bits - 1)) | (0x5A5A5A5A << 64) | 1))


def sk_ed25519() -> str:
    """A hardware-backed Ed25519 key, as a security token would give it."""
    return line(string(b"sk-ssh-ed25519@openssh.com"), string(hashlib.sha256(b"sk").digest()), string(b"ssh:"))


def sk_ecdsa(tmp_path: Path) -> str:
    """A hardware-backed ECDSA key on a real point of the curve."""
    point = base64.b64decode(generated(tmp_path, "ecdsa", 256).split()[1])[-69:]  # its last SSH string with its length
    return line(string(b"sk-ecdsa-sha2-nistp256@openssh.com"), string(b"nistp256"), point, string(b"ssh:"))


def generated(tmp_path: Path, kind: str, bits: int) -> str:
    """A public key line made by ssh-keygen."""
    path = tmp_path / f"{kind}{bits}"
    if not path.exists():
        subprocess.run(
            ["ssh-keygen", "-q", "-t", kind, "-b", str(bits), "-N", "", "-C", "maya@laptop", "-f", path], check=True
        )
    return path.with_suffix(".pub").read_text().strip()


def keygen_fingerprint(tmp_path: Path, text: str) -> str:
    """What ``ssh-keygen -lf`` says."""
    path = tmp_path / "fingerprint.pub"
    path.write_text(text + "\n")
    said = subprocess.run(["ssh-keygen", "-lf", path], check=True, capture_output=True, text=True).stdout
    return said.split()[1]


def refusal(text: str) -> InvalidInput:
    """The refusal of a text."""
    with pytest.raises(InvalidInput) as caught:
        keys.read_public_key(text)
    assert list(caught.value.errors) == ["public_key"]
    return caught.value


@pytest.mark.parametrize(("kind", "bits"), GENERATED)
def test_a_key_of_each_accepted_type_has_the_fingerprint_ssh_keygen_gives(tmp_path: Path, kind: str, bits: int) -> None:
    text = generated(tmp_path, kind, bits)
    read = keys.read_public_key(text)
    assert read.fingerprint == keygen_fingerprint(tmp_path, text)
    assert read.line == " ".join(text.split()[:2])
    assert read.comment == "maya@laptop"


def test_keys_on_security_tokens_are_accepted_with_the_fingerprint_ssh_keygen_gives(tmp_path: Path) -> None:  # case A01
    for text in (sk_ed25519(), sk_ecdsa(tmp_path)):
        read = keys.read_public_key(text)
        assert read.line == text
        assert read.fingerprint == keygen_fingerprint(tmp_path, text)


def test_an_unknown_type_is_refused_with_the_list_of_accepted_ones() -> None:  # case A01
    error = refusal(line(string(b"ssh-foo"), string(b"x" * 32)))
    assert all(kind in error.detail for kind in keys.ACCEPTED)


def wrapped(text: str) -> str:
    """The base64 folded at 70 columns, as a mail program does."""
    kind, data = text.split()
    return kind + " " + "\n".join(textwrap.wrap(data, 70))


def ssh2(text: str) -> str:
    """The block form of RFC 4716, with a continued header."""
    body = "\n".join(textwrap.wrap(text.split()[1], 70))
    header = 'Comment: "rsa-key-\\\n20260101"\nSubject: maya\n'
    return f"---- BEGIN SSH2 PUBLIC KEY ----\n{header}{body}\n---- END SSH2 PUBLIC KEY ----\n"


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda t: t + "\r\n", id="crlf"),
        pytest.param(lambda t: t + "\r", id="lone-cr"),
        pytest.param(lambda t: "\ufeff" + t, id="byte-order-mark"),
        pytest.param(lambda t: f"\u00a0{t}\u00a0", id="no-break-space"),
        pytest.param(wrapped, id="wrapped"),
        pytest.param(lambda t: wrapped(t).replace("\n", "\r\n"), id="wrapped-crlf"),
        pytest.param(ssh2, id="ssh2-block"),
        pytest.param(lambda t: ssh2(t).replace("\n", "\r\n"), id="ssh2-block-crlf"),
        pytest.param(lambda t: f"\n\n  {t}   \n\n", id="blank-lines"),
        pytest.param(lambda t: t + " maya@laptop with words", id="comment"),
    ],
)
def test_harmless_variants_of_one_key_give_one_canonical_line(spoil: object) -> None:  # case A02
    text = rsa_line(3072)
    assert callable(spoil)
    assert keys.read_public_key(spoil(text)).line == text


COMMAND = 'command="id" '


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\u2028", "\u2029", "\x00", "\x0b", "\x0c", "\x85"])
@pytest.mark.parametrize("second", ["", COMMAND, "# "])
def test_a_second_line_is_refused_whatever_separates_it(end: str, second: str) -> None:  # case A04
    first = make.ed25519_line()
    refusal(first + end + second + make.ed25519_line())
    refusal(first + " maya" + end + second + make.ed25519_line())


def test_options_before_the_key_are_refused() -> None:  # case A04
    for text in (COMMAND, "restrict,", 'from="10.0.0.1" ', "no-pty "):
        refusal(text + make.ed25519_line())


def test_a_base64_tail_on_a_further_line_is_refused() -> None:  # case A04
    refusal(make.ed25519_line() + "\nQUJD")
    refusal(line(string(b"ssh-ed25519"), string(b"k" * 32), string(b"more")))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(line(string(b"ssh-dss"), *[mpint(3)] * 4), "DSA", id="dsa"),
        pytest.param(rsa_line(1024), "1024", id="rsa-1024"),
        pytest.param(rsa_line(2048), "2048", id="rsa-2048"),
        pytest.param(rsa_line(3071), "3071", id="rsa-3071"),
        pytest.param(rsa_line(16384), "16384", id="rsa-16384"),
        pytest.param(rsa_line(3072, exponent=1), "broken", id="rsa-exponent-1"),
        pytest.param(line(string(b"ssh-rsa"), mpint(65537), mpint(1 << 3071)), "broken", id="rsa-even"),
        pytest.param(line(string(b"ssh-rsa"), mpint(65537), kind="ssh-ed25519"), "do not match", id="type-mismatch"),
        pytest.param(make.ed25519_line()[:-4], "cut short", id="cut-by-4"),
        pytest.param(make.ed25519_line()[:-3], "cut short", id="cut-by-3"),
        pytest.param("ssh-ed25519", "cut short", id="type-only"),
        pytest.param(
            line(string(b"ssh-ed25519-cert-v01@openssh.com"), string(b"n" * 32), string(b"k" * 32)),
            "certificate",
            id="cert",
        ),
        pytest.param("", "ends in .pub", id="empty"),
        pytest.param("\ufeff \r\n", "ends in .pub", id="blank"),
        pytest.param(
            line(string(b"ecdsa-sha2-nistp256"), string(b"nistp256"), string(b"\x04" + b"\x01" * 64)),
            "cut short",
            id="off-curve",
        ),
    ],
)
@pytest.mark.timeout(5)
def test_weak_and_damaged_keys_are_refused_with_the_reason(text: str, says: str) -> None:  # case A07
    assert says in refusal(text).detail


def test_rsa_up_to_8192_bits_is_accepted() -> None:  # case A07
    assert keys.read_public_key(rsa_line(8192)).key_type == "ssh-rsa"


def test_an_ed25519_key_that_begins_with_a_zero_byte_is_accepted() -> None:  # case A07
    text = line(string(b"ssh-ed25519"), string(b"\x00" + hashlib.sha256(b"zero").digest()[1:]))
    assert keys.read_public_key(text).line == text


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda b: "ssh-rsa " + base64.b64encode(b).decode()))
def test_no_text_whatever_makes_anything_but_a_key_or_a_refusal(text: str) -> None:
    try:
        read = keys.read_public_key(text)
    except InvalidInput:
        return
    assert "\n" not in read.line


def secret_pastes(tmp_path: Path, marker: str) -> dict[str, str]:
    """Things that must never be kept, each with a marker inside."""
    openssh = tmp_path / "private"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "x", "-f", openssh], check=True)
    return {
        "openssh": openssh.read_text().replace("\n", f"\n{marker}\n", 1),
        "pem": f"-----BEGIN RSA PRIVATE KEY-----\n{marker}\n-----END RSA PRIVATE KEY-----\n",
        "pkcs8": f"-----BEGIN ENCRYPTED PRIVATE KEY-----\n{marker}\n-----END ENCRYPTED PRIVATE KEY-----",
        "putty": f"PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nPrivate-Lines: 1\n{marker}\n",
        "after a good key": f"{make.ed25519_line()}\n-----BEGIN OPENSSH PRIVATE KEY-----\n{marker}",
        "password": marker,
        "password line": f"ssh-ed25519 {marker} {marker}",
    }


@pytest.mark.parametrize("kind", ["openssh", "pem", "pkcs8", "putty", "after a good key", "password", "password line"])
def test_a_private_key_or_password_leaves_no_trace(
    kind: str, tmp_path: Path, api: ApiClient, page: Client, caplog: pytest.LogCaptureFixture
) -> None:  # case A06
    marker = "Zq7MARKERx9"
    text = secret_pastes(tmp_path, marker)[kind]
    caplog.set_level(0)
    answer = api.post("ssh-keys", {"public_key": text})
    assert answer.status_code == 400
    shown = page.post("/access/keys/", {"public_key": text, "name": ""})
    assert shown.status_code == 400
    assert marker not in answer.content.decode() + shown.content.decode() + caplog.text
    assert not SshKey.objects.exists()
    assert marker not in serializers.serialize("json", AuditEvent.objects.all())
    if not kind.startswith("password"):
        assert answer.json()["code"] == "private_key"
        assert "replace" in answer.json()["detail"]


def test_a_five_megabyte_paste_is_refused_by_page_and_api(api: ApiClient, page: Client) -> None:  # case A06
    text = "ssh-ed25519 " + "A" * 5_000_000
    assert api.post("ssh-keys", {"public_key": text}).status_code == 413
    assert page.post("/access/keys/", {"public_key": text}).status_code == 400
    assert api.post("ssh-keys", {"public_key": "ssh-ed25519 " + "A" * 20_000}).json()["code"] == "too_large"


def test_adding_a_key_over_the_api_answers_the_canonical_line(api: ApiClient, user: User, tmp_path: Path) -> None:
    text = sk_ed25519()
    answer = api.post("ssh-keys", {"public_key": f"\ufeff{text} yubi\r\n"})
    assert answer.status_code == 201
    assert answer.json()["public_key"] == text
    assert answer.json()["name"] == "yubi"
    assert answer.json()["fingerprint"] == keygen_fingerprint(tmp_path, text)
    assert [key.line for key in user.ssh_keys.all()] == [text]
    assert AuditEvent.objects.get(action="ssh_key.added").actor == user


def test_the_same_key_twice_is_a_conflict_however_it_is_written(api: ApiClient, user: User) -> None:  # case A02
    text = make.ed25519_line()
    assert api.post("ssh-keys", {"public_key": text}).status_code == 201
    again = api.post("ssh-keys", {"public_key": f"\ufeff{text} other comment\r\n", "name": "other"})
    assert (again.status_code, again.json()["code"]) == (409, "duplicate")
    assert user.ssh_keys.count() == 1


def test_two_people_may_have_the_same_key(user: User, stranger: User) -> None:
    text = make.ed25519_line()
    for person in (user, stranger):
        keys.add_key(user=person, name="shared", text=text, actor=Actor.of_user(person))
    assert SshKey.objects.count() == 2


def test_the_number_of_keys_is_limited(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MAX_KEYS", 1)
    keys.add_key(user=user, name="", text=make.ed25519_line(), actor=Actor.of_user(user))
    with pytest.raises(DomainError, match="remove one first"):
        keys.add_key(user=user, name="", text=make.ed25519_line(), actor=Actor.of_user(user))


def test_adding_and_removing_a_key_tells_the_leases_after_commit(
    user: User, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    heard: list[User] = []

    def listen(sender: object, user: User, **_: object) -> None:
        heard.append(user)

    signals.ssh_keys_changed.connect(listen)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            key = keys.add_key(user=user, name="a", text=make.ed25519_line(), actor=Actor.of_user(user))
            assert heard == []
        assert heard == [user]
        with django_capture_on_commit_callbacks(execute=True):
            keys.remove_key(key=key, actor=Actor.of_user(user))
        assert heard == [user, user]
    finally:
        signals.ssh_keys_changed.disconnect(listen)


def test_a_removed_key_is_gone_and_the_audit_remembers_its_fingerprint(api: ApiClient, user: User) -> None:
    key = make.make_key(user)
    assert api.delete(f"ssh-keys/{key.pk}").status_code == 204
    assert not SshKey.objects.exists()
    event = AuditEvent.objects.get(action="ssh_key.removed")
    assert json.dumps(event.data).count(key.fingerprint) == 1
