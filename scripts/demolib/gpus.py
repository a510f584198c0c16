"""The GPUs of this machine: real ones through the NVIDIA driver, else simulated ones, and it is said which."""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from scripts.demolib.portal_stack import ROOT

SIMULATED_MODEL = "NVIDIA H100 80GB HBM3"


@dataclass(frozen=True)
class Gpus:
    """``simulated`` tells the truth on screen; ``env`` and ``arguments`` are what the agent is started with."""

    simulated: bool
    env: dict[str, str]
    arguments: list[str]


def real_gpu_count() -> int:
    """How many GPUs the NVIDIA driver of this machine shows; 0 without a driver."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return 0
    count = ctypes.c_uint(0)
    if nvml.nvmlInit_v2() != 0 or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return 0
    nvml.nvmlShutdown()
    return count.value


def detect(var: Path, simulated_count: int) -> Gpus:
    """Real GPUs if there are any; else a stand-in driver library that the agent loads and reports as simulated."""
    if real_gpu_count():
        return Gpus(simulated=False, env={}, arguments=[])
    sys.path.insert(0, str(ROOT))
    from tests.rig import nvml  # the stand-in lives with the tests, and only this branch needs it

    library = nvml.library_dir() / nvml.SONAME
    conf = var / "simulated-gpus.conf"
    # The same UUIDs at every run: the second run finds the cards it knows.
    seed = uuid.UUID(int=uuid.getnode())
    gpus = [
        nvml.FakeGpu(
            uuid=f"GPU-{uuid.uuid5(seed, f'{var} {index}')}",
            name=SIMULATED_MODEL,
            index=index,
            links=tuple(other for other in range(simulated_count) if other != index),
        )
        for index in range(simulated_count)
    ]
    nvml.write_config(conf, gpus)
    return Gpus(simulated=True, env={"FAKE_NVML_CONF": str(conf)}, arguments=["--simulate", "--nvml", str(library)])
