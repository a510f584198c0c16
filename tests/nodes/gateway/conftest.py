"""One engine for all gateway tests, one node (execd and gateway) for each module."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nodes.gateway.rig import Lease, Node, build_bundle, make_images
from tests.rig.engine import Engine


@pytest.fixture(scope="package")
def engine() -> Iterator[Engine]:
    """A real dockerd with the test images."""
    with Engine(gpus=()) as engine:
        make_images(engine)
        yield engine


@pytest.fixture(scope="package")
def bundle() -> Path:
    """The real SSH bundle."""
    return build_bundle()


@pytest.fixture(scope="module")
def node(engine: Engine, bundle: Path) -> Iterator[Node]:
    """Execd and gateway up, no lease yet."""
    directory = Path(tempfile.mkdtemp(prefix="lessor-gateway-"))  # short: socket paths have a limit
    directory.chmod(0o755)
    node = Node(engine, bundle, directory)
    try:
        node.write_leases()
        node.start_execd()
        node.start_gateway()
        yield node
    finally:
        node.close()
        shutil.rmtree(directory)


@pytest.fixture(scope="module")
def lease(node: Node) -> Lease:
    """A lease with an ordinary image."""
    return node.make_lease("ls-distro", "distro")


@pytest.fixture(scope="module")
def empty_lease(node: Node) -> Lease:
    """A lease with an image from scratch."""
    return node.make_lease("ls-empty", "empty")
