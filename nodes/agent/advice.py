"""What an operator can do about a node whose preflight failed: the engine's own words with the reason behind them."""

import re
from pathlib import Path

from nodes.agent.engine import EngineFacts

CDI_DIRECTORIES = (Path("/etc/cdi"), Path("/var/run/cdi"))
SNAP = Path("/var/snap")

_NO_RUNTIME = re.compile(r"could not select device driver", re.IGNORECASE)
_NO_CDI_DEVICE = re.compile(r"unresolvable cdi devices|cdi device injection failed", re.IGNORECASE)
_NO_DRIVER = re.compile(
    r"driver not loaded|driver error|initialization error|nvml error|driver/library version", re.IGNORECASE
)


def with_advice(problem: str, engine: EngineFacts | None, cdi: tuple[Path, ...] = CDI_DIRECTORIES) -> str:
    """The problem, and in brackets what stands behind it on this machine, where that is known."""
    found = _advice(problem, engine, cdi)
    return f"{problem} ({found})" if found else problem


def _advice(problem: str, engine: EngineFacts | None, cdi: tuple[Path, ...]) -> str:
    if engine and engine.root_dir.is_relative_to(SNAP) and (_NO_RUNTIME.search(problem) or "mount" in problem):
        return (
            "Docker is installed as a snap, which keeps NVIDIA's runtime and our files out: install docker-ce instead"
        )
    if _NO_RUNTIME.search(problem):
        return _no_runtime(engine, cdi)
    if _NO_CDI_DEVICE.search(problem):
        return "Docker's CDI specification lacks this GPU: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
    if _NO_DRIVER.search(problem):
        return "NVIDIA's hook does not reach the driver: nvidia-smi must work on this machine"
    return ""


def _no_runtime(engine: EngineFacts | None, cdi: tuple[Path, ...]) -> str:
    specified = any(path.suffix in {".yaml", ".json"} for directory in cdi for path in _entries(directory))
    if specified and engine and not engine.cdi_devices:
        return (
            f"a CDI specification is there, but Docker {engine.version} does not use it: Docker 28.2 does, 25 to 27 "
            'with {"features": {"cdi": true}} in daemon.json'
        )
    return (
        "Docker has no NVIDIA runtime: install nvidia-container-toolkit, run nvidia-ctk runtime configure "
        "--runtime=docker, restart Docker"
    )


def _entries(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []
