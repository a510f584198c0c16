"""``scripts/gpu-check``: the command line. The standard library alone is enough to say "no driver"."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
from pathlib import Path

OK, FAILED, NO_DRIVER = 0, 1, 2
ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str] | None = None) -> int:
    """Run every step and print each as it ends; the exit status."""
    options = _parser().parse_args(arguments)
    if not _driver():
        print("no NVIDIA driver: nothing to check")
        _write(options.json, {"driver": False, "ok": False, "steps": []})
        return NO_DRIVER
    from scripts.gpucheck.steps import Machine, run_steps  # needs what the set-up has installed

    machine = Machine(_docker_socket(), ROOT / "var" / "bundle", options.image)
    if leases := machine.leases():
        print(f"leases are running here ({', '.join(leases)}): stop them first")
        _write(options.json, {"driver": True, "ok": False, **machine.facts(), "steps": []})
        return FAILED
    found = []
    for result in run_steps(machine):
        print(f"{result.name:<14} {result.status:<8} {result.why}", flush=True)
        found.append(result.as_json())
    ok = all(step["status"] != "failed" for step in found)
    _write(options.json, {"driver": True, "ok": ok, **machine.facts(), "steps": found})
    return OK if ok else FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/gpu-check", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to FILE")
    parser.add_argument("--image", default="lessor/workspace:1", help="the ordinary image to try (default %(default)s)")
    return parser


def _driver() -> bool:
    """Whether the driver's management library loads, and finds its driver."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return int(library.nvmlInit_v2()) == 0


def _docker_socket() -> Path:
    named = os.environ.get("DOCKER_HOST", "")
    return Path(named.removeprefix("unix://") or "/var/run/docker.sock")


def _write(path: Path | None, content: dict[str, object]) -> None:
    if path:
        path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
