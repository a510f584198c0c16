"""Many leases whose time is over at one moment: `python bench/due.py SECONDS`, run with a portal's environment.

Lets all running leases of the filled nodes end in SECONDS, waits until the portal has stopped them, and prints
`{"leases", "median_ms", "p95_ms", "max_ms"}`: how long after that moment each was stopped.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from datetime import timedelta
from pathlib import Path

import django

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a script, not as a module
django.setup()

from django.utils import timezone  # noqa: E402  # after the set-up

from rental.models import Lease  # noqa: E402
from rental.states import State  # noqa: E402

GIVE_UP_S, POLL_S = 120.0, 0.5


def main(seconds: float) -> None:
    """Set, wait, tell."""
    now = timezone.now()
    due = now + timedelta(seconds=seconds)
    running = Lease.objects.filter(node__name__startswith="filled-", state=State.RUNNING)
    names = list(running.values_list("pk", flat=True))
    running.update(deadline_at=due, confirmed_at=now)
    mine = Lease.objects.filter(pk__in=names)
    give_up = time.monotonic() + seconds + GIVE_UP_S
    while mine.filter(stop_requested_at__isnull=True).exists():
        if time.monotonic() > give_up:
            raise SystemExit(f"{mine.filter(stop_requested_at__isnull=True).count()} leases go on after their end")
        time.sleep(POLL_S)
    late = [(at - due) / timedelta(milliseconds=1) for at in mine.values_list("stop_requested_at", flat=True) if at]
    facts = {"median_ms": statistics.median(late), "p95_ms": statistics.quantiles(late, n=20)[18], "max_ms": max(late)}
    sys.stdout.write(json.dumps({"leases": len(late), **facts}))


if __name__ == "__main__":
    main(float(sys.argv[1]))
