"""A renter who can order: key, money, a node with eight priced GPUs. Publishing is off unless a test wants it."""

from __future__ import annotations

import pytest

from nodes import broker
from nodes.models import Node
from portal.models import Tenant, User
from rental import live
from tests import make


@pytest.fixture(autouse=True)
def _no_redis(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Wake-ups and live messages go nowhere; tests of publishing ask for a real Redis instead."""
    if request.node.get_closest_marker("redis"):
        return
    monkeypatch.setattr(broker, "_publish", lambda *_: None)
    monkeypatch.setattr(live, "_send", lambda *_: None)


@pytest.fixture
def renter(user: User, tenant: Tenant) -> User:
    """The user with an SSH key and a balance of 100."""
    make.make_key(user)
    make.make_balance(tenant)
    return user


@pytest.fixture
def node(db: None) -> Node:
    """A node that sells eight GPUs, with a price."""
    make.make_price()
    return make.make_node(gpus=8)
