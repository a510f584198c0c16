"""Many clients that look at a lease again and again: `python bench/pollers.py HOST PORT EVERY_S [--tags] < JOB`.

JOB is `{"token", "paths"}` on one line: one client per path, each with a connection of its own. They go on until
standard input ends; then `{"answers", "unchanged", "failed", "median_ms", "p95_ms"}` is printed.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from dataclasses import dataclass, field


@dataclass
class Seen:
    """What all clients saw."""

    times: list[float] = field(default_factory=list)
    unchanged: int = 0
    failed: int = 0


async def client(host: str, port: int, head: str, first_s: float, every_s: float, seen: Seen, *, tags: bool) -> None:
    """One client: asks every ``every_s`` seconds from ``first_s`` on, later only when an answer takes longer."""
    due, tag = time.monotonic() + first_s, ""
    reader, writer = await asyncio.open_connection(host, port)
    while True:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        begin = time.monotonic()
        due = max(due, begin) + every_s
        try:
            writer.write(f"{head}{f'If-None-Match: {tag}' if tag else 'X-Poll: 1'}\r\n\r\n".encode())
            status, headers = await _answer(reader)
        except (OSError, asyncio.IncompleteReadError):  # the server ended an idle connection
            seen.failed += 1
            reader, writer = await asyncio.open_connection(host, port)
            continue
        seen.times.append((time.monotonic() - begin) * 1000)
        seen.unchanged += status == 304  # noqa: PLR2004
        seen.failed += status not in {200, 304}
        tag = headers.get("etag", "") if tags else ""


async def _answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
    await reader.readexactly(int(headers.get("content-length", "0")))
    return int(first.split()[1]), headers


async def main(host: str, port: int, every_s: float, *, tags: bool) -> None:
    """All clients, their first questions spread over one interval."""
    job, seen = json.loads(sys.stdin.readline()), Seen()
    ask = [
        client(
            host, port,
            f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {job['token']}\r\n",
            every_s * number / len(job["paths"]), every_s, seen, tags=tags,
        )
        for number, path in enumerate(job["paths"])
    ]  # fmt: skip
    clients = asyncio.gather(*ask)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    clients.cancel()
    await asyncio.gather(clients, return_exceptions=True)
    times = seen.times or [0.0, 0.0]
    facts = {"median_ms": statistics.median(times), "p95_ms": statistics.quantiles(times, n=20)[18]}
    sys.stdout.write(
        json.dumps({"answers": len(seen.times), "unchanged": seen.unchanged, "failed": seen.failed, **facts})
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), tags="--tags" in sys.argv))
