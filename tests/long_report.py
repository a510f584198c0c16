"""docs/long-run.md from the junit files of `scripts/test --long`: what ran, how long, where, and what came of it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

HEAD = """# The last long run

`scripts/test --long` runs what takes too long for every run: the fault suite as a whole, silence with the design's own
times, storms of a minute, long random sequences, long transfers. It writes this file.

"""


class Row(NamedTuple):
    """One test."""

    place: str
    name: str
    seconds: float
    outcome: str


def rows(path: Path) -> list[Row]:
    """The tests of one junit file."""
    found = []
    for case in ET.parse(path).getroot().iter("testcase"):  # noqa: S314  # pytest wrote it a moment ago
        kinds = [kind for kind in ("failure", "error", "skipped") if case.find(kind) is not None]
        outcome = {"failure": "**failed**", "error": "**error**", "skipped": "skipped"}[kinds[0]] if kinds else "passed"
        place = path.stem.removeprefix("long-")
        found.append(Row(place, case.get("name", ""), float(case.get("time", "0")), outcome))
    return found


def report(found: list[Row]) -> str:
    """The document."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    cpu = next((x for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")), ": unknown")
    passed, minutes = sum(row.outcome == "passed" for row in found), sum(row.seconds for row in found) / 60
    gib = int(memory.split()[1]) >> 20
    facts = [
        f"- {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {commit.stdout.strip() or 'unknown'}",
        f"- {os.cpu_count()} cores ({cpu.partition(': ')[2]}), {gib} GiB, {platform.release()}",
        f"- {passed} of {len(found)} passed, {minutes:.0f} min of tests",
    ]
    lines = [
        f"| {row.place} | {row.name.removeprefix('test_').replace('_', ' ')} | {row.seconds:.1f} | {row.outcome} |"
        for row in found
    ]
    return "\n".join([HEAD + "\n".join(facts), "", "| where | test | s | |", "|---|---|---:|---|", *lines, ""])


def main(target: str, *files: str) -> None:
    """Write the report of these files to ``target``."""
    Path(target).write_text(report([row for file in files for row in rows(Path(file))]))


if __name__ == "__main__":
    main(*sys.argv[1:])
