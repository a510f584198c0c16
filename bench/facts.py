"""What measurements have in common: the machine they were made on, percentiles, telling the result."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nodes.agent.machine import read_machine

if TYPE_CHECKING:
    from collections.abc import Sequence


def machine() -> dict[str, Any]:
    """What the numbers are measured on; take it before the measurement begins, the load is that of others."""
    facts = read_machine(Path("/"))
    return {
        "cpu_model": facts.cpu_model,
        "cpu_cores": facts.cpu_cores,
        "memory_gib": round(facts.memory_bytes / 2**30, 1),
        "kernel": facts.kernel,
        "os": facts.os,
        "python": platform.python_version(),
        "gpus": "simulated",
        "foreign_load": os.getloadavg()[0],
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and 95th percentile, ms, and of how many."""
    return {"median_ms": statistics.median(values), "p95_ms": statistics.quantiles(values, n=20)[18], "n": len(values)}


def write(path: Path, result: dict[str, Any]) -> None:
    """The numbers as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def say(text: str) -> None:
    """A line on the screen, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()
