"""What the tests of the agent share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nodes.agent.fake_portal import FakePortal
from tests.nodes.agent.rig_node import RigNode
from tests.nodes.agent.world import World
from tests.rig.engine import Engine
from tests.rig.images import add_scratch
from tests.rig.nvml import make_gpus


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with FakePortal() as portal:
        made = World(tmp_path, portal)
        made.start()
        yield made
        made.stop()


@pytest.fixture(scope="module")
def small_engine() -> Iterator[Engine]:
    """Four GPUs of the module's own, without the large workspace image, which most tests of the agent do not need."""
    with Engine(make_gpus(4)) as started:
        add_scratch(started)
        yield started


@pytest.fixture(scope="module")
def whole_node(small_engine: Engine, bundle_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RigNode]:
    """A node on `small_engine`, with a portal. Tests take it by a fixture `node` that keeps it tidy."""
    with (
        FakePortal(small_engine.host_ip) as portal,
        RigNode(small_engine, portal, bundle_dir, tmp_path_factory.mktemp("node")) as started,
    ):
        yield started
