"""How fast a lease comes up, beside the bare Docker SDK on the same engine: `python bench/launch.py [--json [FILE]]`.

Starts a whole Lessor (gunicorn, Celery, SQLite, Redis, an engine of its own, agent, gateway), measures, and ends it.
Needs root and an idle machine; takes about four minutes. What is measured is said in bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import docker

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, not as a module

from bench.caller import Caller  # noqa: E402  # after the path
from bench.rows import POLL_S, Rows  # noqa: E402
from nodes.agent.config import MOST_HOLDERS  # noqa: E402
from nodes.agent.desired import container_name, parse_lease  # noqa: E402
from nodes.agent.hostconfig import NodeFacts, build_body  # noqa: E402
from nodes.agent.machine import read_machine  # noqa: E402
from nodes.agent.network import bridge_name  # noqa: E402
from scripts.demolib.renter import Renter  # noqa: E402
from tests.rig import images, stack  # noqa: E402
from tests.rig.nvml import make_gpus  # noqa: E402

RESULT = ROOT / "bench" / "results" / "launch.json"
GPUS, IN_FLIGHT = 16, 8  # more GPUs than leases in flight: one may be cleaned while the next begins
ROUNDS, WARM_UP, SUSTAINED = 30, 3, 100
IDLE_S = 30.0
KINDS = ("lessor", "plain", "same")
Times = dict[str, float]  # what → milliseconds


class Bench:
    """One running Lessor, and the bare engine beside it."""

    def __init__(self, lessor: stack.Stack, renter: Renter, scratch: Path) -> None:
        self.stack, self.scratch = lessor, scratch
        self.model = lessor.engine.fleet.gpus[0].name
        self.docker: Any = docker.DockerClient(base_url=lessor.engine.docker_host, max_pool_size=2 * IN_FLIGHT)
        self.api: Any = self.docker.api
        self.desired: dict[str, Any] = {}
        self.rows = Rows(Path(lessor.database_url.removeprefix("sqlite:///")))
        portal = lessor.portal
        self.caller = Caller(portal.host, portal.port, str(renter.api.headers["Authorization"]))

    # One launch of each kind ------------------------------------------------------------------------------------------

    def quote(self) -> str:
        """A price for one GPU."""
        wanted = {"gpu_model": self.model, "gpu_count": 1, "image": images.WORKSPACE, "max_duration_s": 3600}
        return str(self.caller.call("POST", "quotes", wanted)[0]["quote"])

    def lessor(self) -> tuple[str, Times]:
        """Order a lease and wait until it is ready: its id, and the times since the order was sent."""
        quote = self.quote()
        made, begin, post_ms = self.caller.call("POST", "leases", {"quote": quote})
        lease_id = str(made["id"])
        row = self.rows.wait(lease_id, lambda row: row[1] or row[2])
        if not row[1]:
            raise SystemExit(f"{lease_id} did not come up:\n{self.stack.log('agent')}")
        return lease_id, {
            "post": post_ms,
            "started": _since(begin, row[0]),
            "ready": _since(begin, row[1]),
        }

    def release(self, lease_id: str) -> None:
        """End a lease and wait until it is clean."""
        self.caller.call("POST", f"leases/{lease_id}/stop")
        self.rows.wait(lease_id, lambda row: row[2])

    def plain(self) -> tuple[str, Times]:
        """`containers.run` as anybody writes it, with the lease's limits, one published port and one bind mount."""
        wanted = self.desired
        begin = time.time()
        container = self.docker.containers.run(
            images.WORKSPACE, detach=True, init=True, ports={"22/tcp": ("127.0.0.1", None)},
            volumes={str(self.scratch): {"bind": "/workspace", "mode": "rw"}}, nano_cpus=wanted["cpus_milli"] * 10**6,
            mem_limit=wanted["memory_bytes"], memswap_limit=wanted["memory_bytes"], shm_size=wanted["shm_bytes"],
            pids_limit=wanted["pids"],
        )  # fmt: skip
        return str(container.id), {"started": (time.time() - begin) * 1000}

    def same(self) -> tuple[str, Times]:
        """The calls that make the very container a lease gets without a holder, its own network included."""
        wanted = parse_lease(self.desired | {"id": f"ls-{time.time_ns()}"})
        name = container_name(wanted.id, wanted.generation)
        facts = NodeFacts("nd-bench", "simulated", images.build_bundle(ROOT / "var" / "bundle"), 4096, memlock=False)
        options = {
            "com.docker.network.bridge.name": bridge_name(name),
            "com.docker.network.bridge.enable_icc": "false",
        }
        begin = time.time()
        self.api.create_network(name, driver="bridge", options=options, check_duplicate=True)
        self.api.create_container_from_config(build_body(wanted, facts, self.scratch), name)
        self.api.start(name)
        return name, {"started": (time.time() - begin) * 1000}

    def remove(self, container: str, *, network: bool = False) -> None:
        """Remove a bare container."""
        self.api.remove_container(container, v=True, force=True)
        if network:
            self.api.remove_network(container)

    # The state in between ---------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Until the node has cleaned up and its pool is full again: the next kind finds a quiet machine."""
        full = min(MOST_HOLDERS, GPUS + 2)
        _until(lambda: len(self.holders()) >= full and not [*(self.stack.node.state / "holders").iterdir()])

    def holders(self) -> list[Any]:
        """The node's holders, ready ones and taken ones."""
        found: list[Any] = self.api.containers(filters={"label": "lessor.role=holder"})
        return found

    def learn(self) -> None:
        """What a lease of this portal looks like to an agent, for `plain` and `same`."""
        lease_id, _ = self.lessor()
        record = json.loads((self.stack.node.state / "leases" / f"{lease_id}.json").read_text())
        self.desired = record["desired"]
        self.release(lease_id)
        self.settle()


# The three measurements -----------------------------------------------------------------------------------------------


def one_by_one(bench: Bench, rounds: int) -> dict[str, list[Times]]:
    """Each kind in turn, nothing else going on; the first rounds are thrown away."""
    found: dict[str, list[Times]] = {kind: [] for kind in KINDS}
    for number in range(WARM_UP + rounds):
        order = KINDS[number % 3 :] + KINDS[: number % 3]
        for kind in order:
            name, times = getattr(bench, kind)()
            if kind == "lessor":
                bench.release(name)
            else:
                bench.remove(name, network=kind == "same")
            bench.settle()
            if number >= WARM_UP:
                found[kind].append(times)
        _say(f"\r  round {number + 1} of {WARM_UP + rounds}")
    _say("\n")
    return found


def sustained(bench: Bench, kind: str, launches: int) -> dict[str, float]:
    """Launches per second with eight in flight, each removed before the next takes its place; for a lease up to ready,
    and the clock stops when the pool is full again."""

    def one(_: int) -> Times:
        name, times = bench.lessor() if kind == "lessor" else bench.plain()
        bench.release(name) if kind == "lessor" else bench.remove(name)
        return times

    begin = time.monotonic()
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        times = list(pool.map(one, range(launches)))
    bench.settle()
    took = time.monotonic() - begin
    last = "ready" if kind == "lessor" else "started"
    return {"rate_per_s": launches / took, "median_ms": statistics.median(t[last] for t in times)}


def idle_cost(bench: Bench, leases: int = 8) -> float:
    """Percent of one core that the agent uses while `leases` run and nobody does anything."""
    names = [bench.lessor()[0] for _ in range(leases)]
    bench_pid = bench.stack.node.agent.pid
    _until(lambda: len(bench.holders()) >= leases + MOST_HOLDERS // 2)  # half of the pool waits whatever is in use
    before, begin = _cpu_s(bench_pid), time.monotonic()
    time.sleep(IDLE_S)
    used = (_cpu_s(bench_pid) - before) / (time.monotonic() - begin) * 100
    for name in names:
        bench.release(name)
    return used


# Telling --------------------------------------------------------------------------------------------------------------


def summary(found: dict[str, list[Times]]) -> dict[str, dict[str, float]]:
    """Median and 95th percentile of each column."""
    columns = {f"{kind} {what}": [t[what] for t in times] for kind, times in found.items() for what in times[0]}
    return {
        column: {"median_ms": statistics.median(values), "p95_ms": statistics.quantiles(values, n=20)[18]}
        for column, values in columns.items()
    }


def verdicts(result: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """The targets, what was measured, and whether it is enough."""
    median = {column: row["median_ms"] for column, row in result["one_by_one"].items()}
    rate = {kind: row["rate_per_s"] for kind, row in result["sustained"].items()}
    plain, started, ready = median["plain started"], median["lessor started"], median["lessor ready"]
    ratio, idle = rate["lessor"] / rate["plain"], result["idle_agent_percent"]
    return [
        ("POST returns within 25 ms", f"{median['lessor post']:.1f} ms", median["lessor post"] <= 25),  # noqa: PLR2004
        ("started not later than plain", f"{started:.0f} against {plain:.0f} ms", started <= plain),
        ("ready at most 200 ms after plain", f"{ready:.0f} against {plain:.0f} ms", ready <= plain + 200),
        ("8 in flight at least at plain's rate", f"{ratio:.2f} times", ratio >= 1),
        ("agent at most 2 % of a core, 8 idle leases", f"{idle:.2f} %", idle <= 2),  # noqa: PLR2004
    ]


def machine(bench: Bench) -> dict[str, Any]:
    """What the numbers were measured on."""
    facts = read_machine(Path("/"))
    return {
        "cpu_model": facts.cpu_model,
        "cpu_cores": facts.cpu_cores,
        "memory_gib": round(facts.memory_bytes / 2**30, 1),
        "kernel": facts.kernel,
        "os": facts.os,
        "python": platform.python_version(),
        "docker": bench.docker.version()["Version"],
        "gpus": "simulated",
        "load_before": os.getloadavg()[0],
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def show(result: dict[str, Any]) -> None:
    """The tables on the screen."""
    _say(f"\n{'':24}{'median':>10}{'p95':>10}   ms, launches one by one\n")
    for column, row in result["one_by_one"].items():
        _say(f"{column:24}{row['median_ms']:10.1f}{row['p95_ms']:10.1f}\n")
    _say(f"\n{'':24}{'per second':>10}{'median ms':>10}   {IN_FLIGHT} in flight, refill counted\n")
    for kind, row in result["sustained"].items():
        _say(f"{kind:24}{row['rate_per_s']:10.2f}{row['median_ms']:10.0f}\n")
    _say("\n")
    for target, value, enough in verdicts(result):
        _say(f"{'yes' if enough else 'NO ':4}{target:44}{value}\n")


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", nargs="?", const=RESULT, type=Path, help=f"write the numbers (default {RESULT.name})")
    parser.add_argument("--quick", action="store_true", help="few launches: tries the bench, proves nothing")
    options = parser.parse_args()
    rounds, launches = (5, 24) if options.quick else (ROUNDS, SUSTAINED)
    _say("GPUs are simulated: NVML is a stand-in, and no device is handed to a container.\nstarting a Lessor …\n")
    with running() as bench:
        result: dict[str, Any] = {"machine": machine(bench)}
        _say("one by one\n")
        result["one_by_one"] = summary(one_by_one(bench, rounds))
        _say(f"{IN_FLIGHT} in flight\n")
        result["sustained"] = {kind: sustained(bench, kind, launches) for kind in ("plain", "lessor")}
        _say("idle\n")
        result["idle_agent_percent"] = idle_cost(bench)
    show(result)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n")


@contextmanager
def running() -> Iterator[Bench]:
    """A Lessor with the intervals of production, one renter, and a first launch behind it."""
    os.environ["LESSOR_AGENT_SIMULATE"] = "true"
    stack.HEARTBEAT_S, stack.PULL_S, stack.SAMPLE_S = 10, 30, 15
    bundle = images.build_bundle(ROOT / "var" / "bundle")
    with (
        tempfile.TemporaryDirectory(prefix="lessor-bench-") as scratch,
        stack.Stack([replace(gpu, links=()) for gpu in make_gpus(GPUS)], bundle) as lessor,
    ):
        bench = Bench(lessor, lessor.renter("bench", money="5000.00"), Path(scratch))
        bench.learn()
        yield bench


def _since(begin: float, moment: str) -> float:
    at = datetime.fromisoformat(moment)
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - begin) * 1000


def _until(true: Callable[[], Any], seconds: float = 60) -> None:
    give_up = time.monotonic() + seconds
    while not true():
        if time.monotonic() > give_up:
            raise SystemExit("the node did not come to rest")
        time.sleep(POLL_S)


def _cpu_s(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")  # its own time and that of children it waited for


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
