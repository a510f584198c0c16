"""What an operator reads about a node that cannot hand out its GPUs."""

from pathlib import Path

import pytest

from nodes.agent.advice import with_advice
from nodes.agent.engine import EngineFacts
from tests.nodes.agent.fake_portal import FakePortal, lease
from tests.nodes.agent.rig_node import RigNode
from tests.rig.engine import Engine
from tests.rig.images import SCRATCH, add_scratch
from tests.rig.nvml import make_gpus

NO_RUNTIME = 'could not select device driver "" with capabilities: [[gpu utility compute]]'


def facts(root: str = "/var/lib/docker", cdi: frozenset[str] = frozenset()) -> EngineFacts:
    return EngineFacts("27.5.1", "overlay2", 2, ("runc",), cdi, Path(root))


@pytest.mark.parametrize(
    ("problem", "engine", "words"),
    [  # case C04
        (NO_RUNTIME, facts(), "install nvidia-container-toolkit"),
        (NO_RUNTIME, facts("/var/snap/docker/common/var-lib-docker"), "installed as a snap"),
        (NO_RUNTIME, None, "install nvidia-container-toolkit"),
        ("CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=GPU-1", facts(), "nvidia-ctk cdi"),
        ("nvidia-container-cli: initialization error: nvml error: driver not loaded", facts(), "nvidia-smi must work"),
    ],
)
def test_a_failed_preflight_says_what_to_do(
    problem: str, engine: EngineFacts | None, words: str, tmp_path: Path
) -> None:
    said = with_advice(problem, engine, (tmp_path,))
    assert said.startswith(problem)
    assert words in said


def test_a_cdi_specification_that_docker_does_not_use_is_named(tmp_path: Path) -> None:  # case C04
    (tmp_path / "nvidia.yaml").write_text("cdiVersion: 0.6.0")
    assert "Docker 27.5.1 does not use it" in with_advice(NO_RUNTIME, facts(), (tmp_path, tmp_path / "missing"))


def test_a_problem_that_nobody_knows_is_told_as_it_is() -> None:
    assert with_advice("no space left on device", facts()) == "no space left on device"


@pytest.mark.rig
def test_a_docker_without_nvidias_runtime_sells_nothing_and_says_why(bundle_dir: Path, tmp_path: Path) -> None:
    # case C04
    with (
        Engine(make_gpus(1), gpu_hook=False) as engine,
        FakePortal(engine.host_ip) as portal,
        RigNode(engine, portal, bundle_dir, tmp_path, sells=False) as node,
    ):
        add_scratch(engine)
        # The first tries may come before there is an image to try with.
        portal.wait_for(lambda: "could not select device driver" in str(portal.preflights[-1]), "the reason")
        check = portal.preflights[-1]["checks"][-1]
        assert (check["name"], check["ok"]) == ("container", False)
        assert "nvidia-container-toolkit" in check["detail"]
        # An order that comes all the same, as from before: fails free of charge, and the node is looked at again.
        before = len(portal.preflights)
        portal.want(lease("ls-1", engine.fleet.uuids, SCRATCH))
        portal.wait_event("ls-1", "cleaned")
        assert portal.report("ls-1", "failed")["failure"] == "failed_gpu"
        portal.wait_for(lambda: len(portal.preflights) > before, "another preflight")
        assert not any(preflight["ok"] for preflight in portal.preflights)
        assert node.left_behind()["containers"] == []
