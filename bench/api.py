"""How fast the portal answers with much in it and many who ask: `python bench/api.py [--json [FILE]] [--sqlite]`.

Starts a whole Lessor (gunicorn, Celery, PostgreSQL, Redis, an engine, agent, gateway), fills it with 200 nodes and 500
leases, measures, and ends it. Needs root and an idle machine; under five minutes. What: bench/README.md.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, not as a module

from bench import facts  # noqa: E402  # after the path
from bench.caller import KEPT_S  # noqa: E402
from bench.rows import POLL_S  # noqa: E402
from scripts.demolib.renter import Renter  # noqa: E402
from tests.rig import images, services, stack  # noqa: E402
from tests.rig.nvml import make_gpus  # noqa: E402

RESULTS = ROOT / "bench" / "results"
NODES, LEASES, GPUS = 200, 500, 8
CLIENTS, EVERY_S = 300, 5.0
ORDERS, READS, LAUNCHES, ROUNDS = 60, 40, 10, 2
WARM_UP = 5  # the first of each kind, thrown away: each process compiles and connects
STEADY_S = 6.0  # more than one round of the clients
MOST_ORDER_MS, MOST_LIST_MS, MOST_RATIO, MOST_LATE_MS = 25, 500, 1.3, 5000
DUE_S = 8.0
SETTINGS = {
    "ORDERS_PER_MINUTE": "100000",
    "QUOTES_PER_MINUTE": "100000",
    "QUIET_AFTER_S": "86400",  # nobody runs the filled nodes
    "SILENCE_S": "86400",
}


class Bench:
    """One running Lessor, one renter, and a connection past the portal to its database."""

    def __init__(self, lessor: stack.Stack, renter: Renter) -> None:
        self.stack, self.renter = lessor, renter
        self.model = lessor.engine.fleet.gpus[0].name
        self.host, self.port = lessor.portal.host, lessor.portal.port
        self.http = http.client.HTTPConnection(self.host, self.port, timeout=20)
        self.asked = time.monotonic()
        self.token = str(renter.api.headers["Authorization"])
        self.cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in renter.browser.cookies)
        self.filled = self._fill()
        self.database = _connect(lessor.database_url)

    def _fill(self) -> dict[str, Any]:
        return self.script("fill.py", "bench-1@example.com", str(NODES), str(LEASES))

    def script(self, name: str, *arguments: str) -> dict[str, Any]:
        """Run a script of this folder beside the portal, with its environment; what it printed."""
        done = subprocess.run(
            [sys.executable, str(ROOT / "bench" / name), *arguments],
            env={**os.environ, **self.stack.portal.env}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(done.stderr)
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    def ask(self, method: str, path: str, body: Any = None, *, browser: bool = False) -> tuple[float, bytes]:
        """One request on the kept connection: milliseconds and the body; anything but a success ends the bench."""
        if time.monotonic() - self.asked > KEPT_S:
            self.http.close()  # the server is about to do so; the next request opens it again
        self.asked = time.monotonic()
        headers = {"Cookie": self.cookies} if browser else {"Authorization": self.token}
        content = None if body is None else json.dumps(body)
        begin = time.perf_counter()
        self.http.request(method, path, content, {**headers, "Content-Type": "application/json"})
        answer = self.http.getresponse()
        text = answer.read()
        took = (time.perf_counter() - begin) * 1000
        if answer.status >= 300:  # noqa: PLR2004
            raise SystemExit(f"{method} {path}: {answer.status} {text[:500]!r}\n{self.stack.log('web')}")
        return took, text

    def quote(self, model: str) -> str:
        """A price for one GPU."""
        wanted = {"gpu_model": model, "gpu_count": 1, "image": images.WORKSPACE, "max_duration_s": 3600}
        return str(json.loads(self.ask("POST", "/api/v1/quotes", wanted)[1])["quote"])

    def order(self, model: str) -> tuple[float, str]:
        """Order one GPU: milliseconds until the answer, and the lease."""
        quote = self.quote(model)
        took, text = self.ask("POST", "/api/v1/leases", {"quote": quote})
        return took, str(json.loads(text)["id"])

    def launch(self) -> dict[str, float]:
        """Order a lease on the node with an engine; milliseconds until it is taken and ready. Ended afterwards."""
        quote, begin = self.quote(self.model), time.time()
        lease_id = str(json.loads(self.ask("POST", "/api/v1/leases", {"quote": quote})[1])["id"])
        posted = time.time()
        ready = self._when("select ready_at from rental_lease where id = ?", lease_id)
        taken = self._when(
            "select min(at) from rental_leaseevent where to_state = 'starting' and from_state = 'assigned'"
            " and lease_id = ?", lease_id,
        )  # fmt: skip
        self.ask("POST", f"/api/v1/leases/{lease_id}/stop")
        self._when("select ended_at from rental_lease where id = ?", lease_id)
        return {"post": (posted - begin) * 1000, "taken": (taken - begin) * 1000, "ready": (ready - begin) * 1000}

    def _when(self, sql: str, lease_id: str, seconds: float = 60) -> float:
        """The moment in this column once it is set, Unix time. Read past the portal, which is not kept busy by it."""
        give_up = time.monotonic() + seconds
        while (moment := self.database(sql, lease_id)) is None:
            if time.monotonic() > give_up:
                raise SystemExit(f"{lease_id} did not come up or end:\n{self.stack.log('agent')}")
            time.sleep(POLL_S)
        return moment


# The measurements -----------------------------------------------------------------------------------------------------


def reads(bench: Bench) -> dict[str, Callable[[], float]]:
    """What is read again and again, by name."""
    lease = bench.filled["running"][0]
    return {
        "catalog, page": lambda: bench.ask("GET", "/", browser=True)[0],
        "catalog, API": lambda: bench.ask("GET", "/api/v1/offers")[0],
        "leases, page": lambda: bench.ask("GET", "/leases/", browser=True)[0],
        "leases, API (200 rows)": lambda: bench.ask("GET", "/api/v1/leases?limit=200")[0],
        "one lease, page": lambda: bench.ask("GET", f"/leases/{lease}/", browser=True)[0],
        "one lease, API": lambda: bench.ask("GET", f"/api/v1/leases/{lease}")[0],
    }


def repeated(act: Callable[[], float], number: int) -> dict[str, float]:
    """The same thing again and again, one after the other."""
    for _ in range(WARM_UP):
        act()
    return facts.spread([act() for _ in range(number)])


def launches(bench: Bench) -> dict[str, Any]:
    """Launches with nobody asking, with clients that ask, and with clients that send a tag, in turns."""
    kinds: dict[str, tuple[str, ...] | None] = {"quiet": None, "polled": (), "polled with tags": ("--tags",)}
    times: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    clients: dict[str, dict[str, float]] = {}
    for _ in range(2):
        bench.launch()
    for number in range(ROUNDS):
        for kind, options in kinds.items():
            facts.say(f"  launches, {kind}, {number + 1} of {ROUNDS}\n")
            with ExitStack() as exits:
                seen = None if options is None else exits.enter_context(polling(bench, *options))
                times[kind] += [bench.launch() for _ in range(LAUNCHES)]
            if seen is not None:
                clients[kind] = seen
    columns = {f"{kind}: {what}": [row[what] for row in rows] for kind, rows in times.items() for what in rows[0]}
    return {"launches": {name: facts.spread(values) for name, values in columns.items()}, "clients": clients}


@contextmanager
def polling(bench: Bench, *options: str) -> Iterator[dict[str, float]]:
    """Clients asking in the background; the dictionary is filled with what they saw when they have ended."""
    seen: dict[str, float] = {}
    paths = [f"/api/v1/leases/{lease}" for lease in bench.filled["running"][:CLIENTS]]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "bench" / "pollers.py"), bench.host, str(bench.port), str(EVERY_S), *options],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    if process.stdin is None:
        raise TypeError("a pipe was asked for")
    process.stdin.write(json.dumps({"token": bench.token.removeprefix("Bearer "), "paths": paths}) + "\n")
    process.stdin.flush()
    try:
        time.sleep(STEADY_S)
        yield seen
        seen.update(json.loads(process.communicate(timeout=30)[0]))
    finally:
        process.kill()
        process.wait()


def measure(bench: Bench) -> dict[str, Any]:
    """Everything, in the order of the tables."""
    facts.say("orders and reads\n")
    model = bench.filled["model"]
    found = {"order": repeated(lambda: bench.order(model)[0], ORDERS)}
    found |= {name: repeated(act, READS) for name, act in reads(bench).items()}
    bench.stack.engine.pause()
    try:
        read = reads(bench)["one lease, API"]
        slow = {"order": repeated(lambda: bench.order(model)[0], READS), "one lease, API": repeated(read, READS)}
    finally:
        bench.stack.engine.resume()
    found_launches = launches(bench)
    facts.say("deadlines\n")
    late = bench.script("due.py", str(DUE_S))  # last: nothing runs on the filled nodes afterwards
    return {"answers": found, "answers_with_an_engine_that_hangs": slow, **found_launches, "deadlines": late}


def verdicts(result: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """The targets, what was measured, and whether it is enough."""
    answers, ready = result["answers"], {name: row["p95_ms"] for name, row in result["launches"].items()}
    order, slowest = answers["order"]["median_ms"], max(row["p95_ms"] for row in answers.values())
    hung = max(row["p95_ms"] for row in result["answers_with_an_engine_that_hangs"].values())
    found = [
        (f"an order returns within {MOST_ORDER_MS} ms (median)", f"{order:.1f} ms", order <= MOST_ORDER_MS),
        (f"every list and page within {MOST_LIST_MS} ms (p95)", f"{slowest:.0f} ms", slowest <= MOST_LIST_MS),
        ("an engine that hangs slows no answer (p95)", f"{hung:.0f} ms", hung <= MOST_LIST_MS),
    ]
    for kind in ("polled", "polled with tags"):
        ratio = ready[f"{kind}: ready"] / ready["quiet: ready"]
        found.append((f"launches {kind} at most {MOST_RATIO} x quiet (p95)", f"{ratio:.2f}", ratio <= MOST_RATIO))
    late, number = result["deadlines"]["max_ms"], result["deadlines"]["leases"]
    found.append((f"{number} leases due at once are stopped within 5 s", f"{late / 1000:.1f} s", late <= MOST_LATE_MS))
    return found


# Telling --------------------------------------------------------------------------------------------------------------


def show(result: dict[str, Any]) -> None:
    """The tables on the screen."""
    for title in ("answers", "answers_with_an_engine_that_hangs", "launches"):
        facts.say(f"\n{title.replace('_', ' '):36}{'median':>10}{'p95':>10}   ms\n")
        for name, row in result[title].items():
            facts.say(f"{name:36}{row['median_ms']:10.1f}{row['p95_ms']:10.1f}\n")
    for kind, seen in result["clients"].items():
        facts.say(
            f"\n{CLIENTS} clients, {kind}: {seen['answers']:.0f} answers, {seen['unchanged']:.0f} of them unchanged, "
            f"{seen['failed']:.0f} failed; median {seen['median_ms']:.1f} ms, p95 {seen['p95_ms']:.1f} ms\n"
        )
    facts.say("\n")
    for target, value, enough in verdicts(result):
        facts.say(f"{'yes' if enough else 'NO ':4}{target:52}{value}\n")


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sqlite", action="store_true", help="the embedded default instead of PostgreSQL")
    parser.add_argument("--json", nargs="?", const="", help="write the numbers (default api.json or api-sqlite.json)")
    options = parser.parse_args()
    result: dict[str, Any] = {"machine": facts.machine(), "database": "sqlite" if options.sqlite else "postgresql"}
    facts.say(f"GPUs are simulated. Load of others before the start: {result['machine']['foreign_load']:.1f}\n")
    with running(sqlite=options.sqlite) as bench:
        result |= measure(bench)
    show(result)
    if options.json is not None:
        name = "api-sqlite.json" if options.sqlite else "api.json"
        facts.write(Path(options.json) if options.json else RESULTS / name, result)


@contextmanager
def running(*, sqlite: bool) -> Iterator[Bench]:
    """A filled Lessor with the intervals of production, and one renter."""
    os.environ["LESSOR_AGENT_SIMULATE"] = "true"
    stack.HEARTBEAT_S, stack.PULL_S, stack.SAMPLE_S = 10, 30, 15
    bundle = images.build_bundle(ROOT / "var" / "bundle")
    gpus = [replace(gpu, links=()) for gpu in make_gpus(GPUS)]
    with ExitStack() as exits:
        url = None if sqlite else exits.enter_context(services.postgres(durable=True)).url
        lessor = exits.enter_context(stack.Stack(gpus, bundle, url, settings=SETTINGS))
        facts.say("filling\n")
        yield Bench(lessor, lessor.renter("bench", money="50000.00"))


def _connect(url: str) -> Callable[[str, str], float | None]:
    """A question for one moment of one lease, on a connection that stays."""
    if url.startswith("sqlite"):
        file = sqlite3.connect(url.removeprefix("sqlite:///"))
        return lambda sql, lease_id: _unix(file.execute(sql, (lease_id,)).fetchone())
    server = psycopg.connect(url, autocommit=True)
    return lambda sql, lease_id: _unix(server.execute(sql.replace("?", "%s").encode(), (lease_id,)).fetchone())


def _unix(row: tuple[Any, ...] | None) -> float | None:
    if row is None or row[0] is None:
        return None
    at = datetime.fromisoformat(row[0]) if isinstance(row[0], str) else row[0]
    return float((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())


if __name__ == "__main__":
    main()
