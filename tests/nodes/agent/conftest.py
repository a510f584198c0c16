"""What the tests of the agent share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nodes.agent.fake_portal import FakePortal
from tests.nodes.agent.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with FakePortal() as portal:
        made = World(tmp_path, portal)
        made.start()
        yield made
        made.stop()
