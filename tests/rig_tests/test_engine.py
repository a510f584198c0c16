"""The engines themselves, and the SSH bundle inside an image that has nothing of its own."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.rig import images, leftovers
from tests.rig.engine import Engine
from tests.rig.nvml import FakeGpu, FakeMig, FakeProcess, make_gpus

pytestmark = pytest.mark.rig

EngineFactory = Callable[[Sequence[FakeGpu]], Engine]


@pytest.fixture
def run(engine: Engine, bundle_dir: Path) -> Iterator[Callable[..., str]]:
    """Starts a container with the bundle, from scratch unless told otherwise; all are removed after the test."""
    started: list[str] = []

    def start(*options: str, image: str = images.SCRATCH, on: Engine = engine) -> str:
        done = on.docker("run", "--detach", "--network=none", "--volume", f"{bundle_dir}:/.lease:ro", *options, image)
        if on is engine:
            started.append(done.stdout.strip())
        return done.stdout.strip()

    yield start
    for container in started:
        engine.docker("rm", "--force", container)


def gpus_option(uuids: Sequence[str]) -> str:
    return f'--gpus="device={",".join(uuids)}"'


def probe(engine: Engine, container: str, *, exit_code: int = 0) -> Any:
    done = engine.docker("exec", container, "/.lease/bin/probe", check=False)
    assert done.returncode == exit_code, done.stderr
    return json.loads(done.stdout)


def test_the_probe_sees_by_nvml_exactly_the_gpus_that_were_requested(engine: Engine, run: Callable[..., str]) -> None:
    wanted = engine.fleet.uuids[1:3]
    container = run(gpus_option(wanted), "--cap-drop=ALL", "--security-opt=no-new-privileges", "--init")
    assert probe(engine, container) == {"source": "nvml", "devices": wanted, "driver": "570.86.15"}


def test_the_probe_lists_mig_devices_and_only_those_requested(
    engine_factory: EngineFactory, run: Callable[..., str]
) -> None:
    slices = tuple(FakeMig(uuid=f"MIG-{number}", gpu_instance=number) for number in (7, 8, 9))
    node = engine_factory([FakeGpu(uuid="GPU-whole"), FakeGpu(uuid="GPU-cut", index=1, mig_mode=True, mig=slices)])
    assert probe(node, run(gpus_option(["MIG-8"]), on=node))["devices"] == ["MIG-8"]
    assert probe(node, run(gpus_option(["GPU-whole"]), on=node))["devices"] == ["GPU-whole"]


def test_without_nvml_the_probe_reads_the_variable_of_process_1(engine: Engine, run: Callable[..., str]) -> None:
    seen = probe(engine, run("--env=NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b"))
    assert (seen["source"], seen["devices"]) == ("proc1_environ", ["GPU-a", "GPU-b"])


def test_with_neither_the_probe_says_none_and_fails(engine: Engine, run: Callable[..., str]) -> None:
    assert probe(engine, run(), exit_code=3) == {
        "source": "none",
        "devices": [],
        "error": "libnvidia-ml.so.1 was not found",
    }


def test_an_unknown_gpu_fails_the_start_as_the_real_hook_does(engine: Engine) -> None:
    done = engine.docker("run", "--rm", gpus_option(["GPU-none"]), images.SCRATCH, check=False)
    assert "nvidia-container-cli: device error: GPU-none: unknown device" in done.stderr


def test_a_hook_failure_can_be_injected_and_ends(engine: Engine, run: Callable[..., str]) -> None:
    engine.fail_gpu_hook("nvml error: unknown error")
    try:
        done = engine.docker("run", "--rm", gpus_option(engine.fleet.uuids[:1]), images.SCRATCH, check=False)
    finally:
        engine.fail_gpu_hook(None)
    assert "nvml error: unknown error" in done.stderr
    assert probe(engine, run(gpus_option(engine.fleet.uuids[:1])))["devices"] == engine.fleet.uuids[:1]


def test_sftp_works_in_an_image_without_passwd(engine: Engine, run: Callable[..., str], tmp_path: Path) -> None:
    container = run()
    (tmp_path / "sent").write_bytes(os.urandom(1 << 20))
    (tmp_path / "batch").write_text(f"put {tmp_path}/sent /kept\nget /kept {tmp_path}/back\nls -l /kept\n")
    server = f"docker -H {engine.docker_host} exec -i {container} /.lease/bin/sftp-server"
    done = subprocess.run(["sftp", "-b", tmp_path / "batch", "-D", server], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "back").read_bytes() == (tmp_path / "sent").read_bytes()
    assert "root" in done.stdout


@pytest.mark.parametrize("image", [images.SCRATCH, images.WORKSPACE])
def test_rsync_goes_both_ways(engine: Engine, run: Callable[..., str], tmp_path: Path, image: str) -> None:
    # the image's own idea of what to preload must not reach the bundle's programs
    container = run("--env=LD_PRELOAD=/nowhere.so", "--env=LD_LIBRARY_PATH=/usr/lib", image=image)
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent/data").write_bytes(os.urandom(1 << 20))
    rsync = ["rsync", "-a", "--rsync-path=/.lease/bin/rsync", f"--rsh=docker -H {engine.docker_host} exec -i"]
    for source, target in ((f"{tmp_path}/sent/", f"{container}:/kept/"), (f"{container}:/kept/", f"{tmp_path}/back/")):
        done = subprocess.run([*rsync, source, target], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "back/data").read_bytes() == (tmp_path / "sent/data").read_bytes()


def test_the_workspace_ends_at_once_when_told_to(engine: Engine, run: Callable[..., str]) -> None:
    container = run(image=images.WORKSPACE)
    engine.docker("stop", "--time=60", container)
    state = engine.docker("inspect", "--format", "{{.State.ExitCode}}", container)
    assert state.stdout.strip() == "0"  # 137 would be the kill after the grace time


def test_a_process_on_a_gpu_shows_to_the_node_not_to_the_container(engine: Engine, run: Callable[..., str]) -> None:
    gpu = engine.fleet.uuids[0]
    container = run(gpus_option([gpu]))
    engine.fleet.start_process(gpu, FakeProcess(pid=4242))
    try:
        assert "proc 4242" in engine.fleet.path.read_text()
        assert probe(engine, container)["devices"] == [gpu]
    finally:
        engine.fleet.end_process(gpu, 4242)


def test_engines_run_side_by_side_and_leave_nothing_behind(engine: Engine) -> None:
    with Engine(make_gpus(1)) as other:
        images.add_scratch(other)
        assert other.ip != engine.ip
        container = other.docker("run", "--detach", gpus_option(other.fleet.uuids), images.SCRATCH).stdout.strip()
        number, root = other.network.number, other.root
        namespace, interface = Path("/run/netns", other.name), Path("/sys/class/net", other.network.host_interface)
        identities = namespace.stat().st_ino, (interface / "ifindex").read_text()
        assert leftovers.container_pids(number)
    assert engine.answers()
    assert not root.exists()
    assert leftovers.engine_pids(root) == set()
    assert leftovers.mounts_below(root) == []
    assert [path for path in leftovers.cgroup_dirs(number) if path.name == container] == []
    # somebody else may have taken the number by now, hence identities and not names
    assert not namespace.exists() or namespace.stat().st_ino != identities[0]
    assert not interface.exists() or (interface / "ifindex").read_text() != identities[1]


def test_containers_outlive_a_killed_dockerd_and_are_found_again(engine_factory: EngineFactory) -> None:
    node = engine_factory(make_gpus(1))
    container = node.docker("run", "--detach", "--network=none", images.SCRATCH).stdout.strip()
    before = leftovers.container_pids(node.network.number)
    node.kill_dockerd()
    assert not node.answers()
    assert leftovers.container_pids(node.network.number) == before
    node.start_dockerd()
    assert node.docker("inspect", "--format", "{{.State.Status}}", container, check=False).returncode == 0


def test_a_paused_engine_does_not_answer_until_it_resumes(engine_factory: EngineFactory) -> None:
    node = engine_factory(make_gpus(1))
    node.pause()
    assert not node.answers()
    node.resume()
    assert node.answers()
