"""Tests of nodes run without a broker unless they start their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from nodes import broker
from portal.actor import Actor
from tests import make
from tests.nodes.agentlike import node_client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nodes.models import Node
    from tests.clients import ApiClient


@pytest.fixture(autouse=True)
def _no_broker(settings: Any) -> Iterator[None]:
    settings.NODE_BROKER_URL = settings.NODE_BROKER_PUBLIC_URL = ""
    broker.close()
    yield
    broker.close()


@pytest.fixture
def actor() -> Actor:
    """Who does things in tests."""
    return Actor.system("tests")


@pytest.fixture
def node(db: None) -> Node:
    """An enrolled node without GPUs."""
    return make.make_node("ams-gpu-01", gpus=0)


@pytest.fixture
def agent(node: Node) -> ApiClient:
    """The node's agent."""
    return node_client(make.make_node_secret(node))
