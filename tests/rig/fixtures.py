"""The rig as pytest fixtures: `pytest_plugins = ["tests.rig.fixtures"]`.

Everything that is started here is started once for the test session and ends with it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.rig import images, services
from tests.rig.engine import Engine
from tests.rig.nvml import FakeGpu, make_gpus


@pytest.fixture(scope="session")
def redis_server() -> Iterator[str]:
    """URL of a private redis-server."""
    with services.redis_server() as url:
        yield url


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of a database in a private PostgreSQL."""
    with services.postgres_server() as url:
        yield url


@pytest.fixture(scope="session")
def bundle_dir() -> Path:
    """The SSH bundle, to be mounted read-only as /.lease."""
    return images.build_bundle(images.REPOSITORY / "var" / "bundle")


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """A node with four fake H100 and both images. Shared: a test that changes its GPUs puts them back."""
    with Engine(make_gpus(4)) as started:
        images.add_scratch(started)
        images.add_workspace(started)
        yield started


@pytest.fixture
def engine_factory() -> Iterator[Callable[[Sequence[FakeGpu]], Engine]]:
    """Starts nodes of the test's own, with the GPUs given and the image from scratch; they end with the test."""
    with ExitStack() as stack:

        def start(gpus: Sequence[FakeGpu]) -> Engine:
            started = stack.enter_context(Engine(gpus))
            images.add_scratch(started)
            return started

        yield start
