"""Who came in over SSH, on the page of a lease and beside the keys."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client, TestCase
from django.urls import reverse
from django.utils import timezone

from nodes import ssh_events
from nodes.models import Node
from portal.models import SshKey, Tenant, User
from rental import live, ssh_activity
from rental.models import Lease
from tests import make
from tests.rental.factories import running

pytestmark = pytest.mark.django_db


@pytest.fixture
def lease(renter: User, tenant: Tenant, node: Node) -> Lease:
    return running(renter, tenant)


@pytest.fixture
def key(lease: Lease, renter: User) -> SshKey:
    return renter.ssh_keys.get()


def tell(lease: Lease, node: Node | None = None, **facts: Any) -> datetime:
    """The node has seen a login; when."""
    now = timezone.now()
    event = {"id": str(uuid4()), "age_s": 0, "lease": lease.pk, "kind": "login", "peer": "192.0.2.7", **facts}
    with TestCase.captureOnCommitCallbacks(execute=True):
        ssh_events.record(node=node or lease.node, payload={"events": [event]}, now=now)  # type: ignore[arg-type]
    return now - timedelta(seconds=event["age_s"])


def test_a_login_says_when_a_key_was_last_used_and_an_older_one_does_not(lease: Lease, key: SshKey) -> None:
    at = tell(lease, key=key.fingerprint)
    key.refresh_from_db()
    assert key.last_used_at == at

    tell(lease, key=key.fingerprint, age_s=3600)
    tell(lease, key=key.fingerprint, kind="login_refused")
    key.refresh_from_db()
    assert key.last_used_at == at


def test_only_keys_of_the_lease_s_tenant_and_only_its_own_node_count(lease: Lease, key: SshKey, stranger: User) -> None:
    theirs = make.make_key(stranger, line=key.line)
    tell(lease, make.make_node(name="elsewhere"), key=key.fingerprint)
    key.refresh_from_db()
    assert key.last_used_at is None

    tell(lease, key=key.fingerprint)
    theirs.refresh_from_db()
    assert theirs.last_used_at is None
    assert ssh_activity.recent(lease)[0].peer == "192.0.2.7"
    assert len(ssh_activity.recent(lease)) == 1


def test_the_page_tells_who_came_from_where_and_what_they_did(lease: Lease, key: SshKey, renter: User) -> None:
    tell(lease, key=key.fingerprint)
    tell(lease, key="SHA256:aVeryLongFingerprintOfSomebody", kind="login_refused", peer="198.51.100.9")
    tell(lease, key=key.fingerprint, kind="forward", detail="127.0.0.1:8888")
    tell(lease, key=key.fingerprint, kind="forward", detail="10.0.0.1:22 refused")
    tell(lease, key=key.fingerprint, kind="session_end", detail="sftp", bytes_in=1 << 20, bytes_out=5)
    tell(lease, key="SHA256:ca", detail="portal", peer="203.0.113.1")
    tell(lease, key="SHA256:ca", kind="session_end", detail="portal shell")
    tell(lease, kind="session_start", detail="command")

    client = Client()
    client.force_login(renter)
    page = client.get(reverse("lease", args=[lease.pk])).content.decode()

    assert "SSH activity" in page
    for words in ("Logged in", "Login refused", "Forward to 127.0.0.1:8888", "File transfer ended", "Shell ended"):
        assert words in page
    assert [seen.refused for seen in ssh_activity.recent(lease)] == [False, False, False, True, False, True, False]
    assert f"{renter.email}, {key.name}" in page
    assert "198.51.100.9" in page
    assert "unknown key" in page
    assert "the portal" in page
    assert "1.0\xa0MB in" in page


def test_a_lease_nobody_came_into_has_no_such_section(lease: Lease, renter: User) -> None:
    client = Client()
    client.force_login(renter)

    assert "SSH activity" not in client.get(reverse("lease", args=[lease.pk])).content.decode()


def test_open_pages_hear_of_a_login(lease: Lease, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(live, "publish", lambda lease: told.append(lease.pk))
    tell(lease)
    tell(lease, make.make_node(name="elsewhere"))

    assert told == [lease.pk]
