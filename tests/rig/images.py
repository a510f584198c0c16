"""The images that rig tests start: one from scratch (no shell, no passwd, one static program) and the workspace."""

import io
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Protocol

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
SCRATCH = "lessor-test/scratch:1"
WORKSPACE = "lessor/workspace:1"


class HasDockerHost(Protocol):
    """An engine, as far as images are concerned."""

    @property
    def docker_host(self) -> str: ...


def scratch_archive() -> bytes:
    """A tar of the root filesystem: /sleeper."""
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "sleeper"
        subprocess.run(["gcc", "-static", "-Os", "-s", "-o", program, HERE / "scratch" / "sleeper.c"], check=True)
        content = program.read_bytes()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        entry = tarfile.TarInfo("sleeper")
        entry.size = len(content)
        entry.mode = 0o755
        tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def add_scratch(engine: HasDockerHost) -> str:
    """Puts the image from scratch into the engine; returns its name."""
    subprocess.run(
        ["docker", "import", "--change", 'CMD ["/sleeper"]', "--change", "ENV MARK=scratch", "-", SCRATCH],
        env=os.environ | {"DOCKER_HOST": engine.docker_host},
        input=scratch_archive(),
        check=True,
        capture_output=True,
    )
    return SCRATCH


def add_workspace(engine: HasDockerHost) -> str:
    """Puts the default workspace image into the engine, from the cache where it was built before; returns its name."""
    subprocess.run(
        [REPOSITORY / "deploy" / "images" / "build-workspace"],
        env=os.environ | {"DOCKER_HOST": engine.docker_host},
        check=True,
        capture_output=True,
    )
    return WORKSPACE


def workspace_is_cached() -> bool:
    """Whether `add_workspace` would only load an archive."""
    script = REPOSITORY / "deploy" / "images" / "build-workspace"
    return subprocess.run([script, "--cached"], check=False, capture_output=True).returncode == 0


def build_bundle(directory: Path) -> Path:
    """Builds the SSH bundle, or finds it built; returns the directory to mount as /.lease."""
    subprocess.run([REPOSITORY / "deploy" / "bundle" / "build", directory], check=True, capture_output=True)
    return directory.resolve()
