"""scripts/gpu-check as far as a machine without GPUs can take it."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rig.engine import Engine
from tests.rig.images import SCRATCH

ROOT = Path(__file__).parents[2]


def gpu_check(
    tmp_path: Path, environment: dict[str, str], *enter: str
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """The run and what it wrote."""
    written = tmp_path / "found.json"
    done = subprocess.run(
        [*enter, sys.executable, "-m", "scripts.gpucheck", "--json", str(written)],
        cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert written.exists(), done.stderr
    return done, json.loads(written.read_text())


def test_without_a_driver_there_is_nothing_to_check(tmp_path: Path) -> None:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        done, found = gpu_check(tmp_path, {})
        assert (done.returncode, done.stdout) == (2, "no NVIDIA driver: nothing to check\n")
        assert found == {"driver": False, "ok": False, "steps": []}
    else:
        pytest.skip("this machine has an NVIDIA driver")


@pytest.mark.rig
def test_every_step_but_the_canary_runs_against_the_stand_in(engine: Engine, bundle_dir: Path, tmp_path: Path) -> None:
    assert bundle_dir == (ROOT / "var" / "bundle").resolve()
    lines = [f"GPU {number}: NVIDIA H100 80GB HBM3 (UUID: {uuid})" for number, uuid in enumerate(engine.fleet.uuids)]
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\ncat <<END\n" + "\n".join(lines) + "\nEND\n")
    smi.chmod(0o755)
    environment = {
        **engine.nvml_environment, "DOCKER_HOST": engine.docker_host, "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }  # fmt: skip

    done, found = gpu_check(tmp_path, environment, *engine.nsenter())

    steps = {step["name"]: step["status"] for step in found["steps"]}
    assert steps.pop("limits") in {"ok", "skipped"}, done.stdout
    assert steps == {
        "toolkit": "ok", "uuids": "ok", "exact_devices": "ok", "vram_canary": "failed", "clean_after": "ok",
        "gpu_load": "failed",
    }, done.stdout  # fmt: skip
    canary = next(step for step in found["steps"] if step["name"] == "vram_canary")
    assert canary["why"] == "vram: libcuda.so.1 cannot be loaded -1"
    assert (done.returncode, found["ok"]) == (1, False)
    assert engine.docker("ps", "-aq", "--filter", "label=lessor.role=gpu-check").stdout == ""
    assert engine.docker("network", "ls", "-q", "--filter", "name=lessor-ls-gpucheck").stdout == ""
    assert "lessor-gpu-check" not in engine.docker("images").stdout + Path("/proc/mounts").read_text()


@pytest.mark.rig
def test_a_toolkit_that_refuses_the_gpu_fails_every_step_that_needs_one(engine: Engine, tmp_path: Path) -> None:
    engine.fail_gpu_hook("nvidia-container-cli: device error: unknown device")
    try:
        environment = {**engine.nvml_environment, "DOCKER_HOST": engine.docker_host}
        done, found = gpu_check(tmp_path, environment, *engine.nsenter())
    finally:
        engine.fail_gpu_hook(None)
    steps = {step["name"]: step for step in found["steps"]}
    assert steps["toolkit"]["status"] == steps["exact_devices"]["status"] == "failed"
    assert "unknown device" in steps["toolkit"]["why"]
    assert steps["uuids"]["status"] == "failed"
    assert "nvidia-smi" in steps["uuids"]["why"]
    assert done.returncode == 1


@pytest.mark.rig
def test_nothing_is_tried_while_a_lease_runs(engine: Engine, tmp_path: Path) -> None:
    labels = ("--label", "lessor.role=workspace", "--label", "lessor.lease=ls-somebody")
    engine.docker("run", "--detach", "--name", "somebody", *labels, SCRATCH)
    try:
        done, found = gpu_check(tmp_path, {**engine.nvml_environment, "DOCKER_HOST": engine.docker_host})
    finally:
        engine.docker("rm", "--force", "somebody")
    assert (done.returncode, found["steps"]) == (1, [])
    assert "ls-somebody" in done.stdout
