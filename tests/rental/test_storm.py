"""A storm: many processes order, stop, extend, drain and report at random over the same GPUs, on PostgreSQL.

Renters come through the API as a program would; nodes, operators and sweeps through the services. Nothing may be sold
twice or lost, and nobody may see a 500. The long form is 60 s.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import time
import traceback
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.db import connections
from django.test import Client

from nodes import services as nodes
from nodes.models import GpuSlot, Node
from portal.actor import Actor
from portal.errors import DomainError
from rental import reports, tasks
from rental.models import Allocation, Lease, UsageSegment
from rental.states import LIVE, State
from tests import make
from tests.rental.factories import good_evidence

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif("connections['default'].vendor != 'postgresql'", reason="SQLite lets one writer in at a time"),
]
PROCESSES, NODES, GPUS = 16, 8, 8
REFUSALS = {200, 201, 400, 402, 404, 409, 429}
NEXT_REPORTS = {
    State.ASSIGNED: ("starting", "started", "ready", "failed"),
    State.STARTING: ("started", "ready", "ready", "ready", "failed", "exited"),
    State.RUNNING: ("exited", "ready", "deadline"),
    State.STOPPING: ("stopped", "cleaned", "cleaned", "ready"),
}


class Player:
    """One process of the storm: acts at random until the time is over, and keeps what must not have happened."""

    def __init__(self, number: int, tokens: list[str]) -> None:
        self.dice = random.Random(number)  # noqa: S311  # a game, not a secret
        self.tokens = tokens
        self.client = Client(raise_request_exception=False)
        self.done: Counter[str] = Counter()
        self.faults: list[str] = []

    def play(self, seconds: float) -> None:
        """Act until the time is over."""
        acts: list[Callable[[], str]] = [self.order] * 4 + [self.report] * 8 + [self.stop, self.extend, self.drain]
        acts.append(self.sweep)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            act = self.dice.choice(acts)
            try:
                self.done[act()] += 1
            except DomainError as error:
                self.done[f"refused {error.code}"] += 1
            except Exception:  # noqa: BLE001  # what the storm is looking for
                self.faults.append(traceback.format_exc())

    def order(self) -> str:
        """Quote and order; now and then the same quote twice."""
        token = self.dice.choice(self.tokens)
        wanted = {"gpu_model": make.H100, "gpu_count": self.dice.choice([1, 1, 1, 2, 4, 8]), "max_duration_s": 3600}
        quote = self.call(token, "quotes", wanted)
        if "quote" not in quote:
            return f"quote {quote.get('code')}"
        answers = [self.call(token, "leases", {"quote": quote["quote"]}) for _ in range(self.dice.choice([1, 1, 2]))]
        return f"order {answers[-1].get('code') or 'made'}"

    def stop(self) -> str:
        """Stop one of anybody's leases, which only its own tenant can."""
        lease = self.pick()
        return self.post_to(lease, "stop", {}) if lease else "nothing to stop"

    def extend(self) -> str:
        """More time, or less."""
        lease = self.pick()
        if lease is None:
            return "nothing to extend"
        return self.post_to(lease, "extend", {"max_duration_s": self.dice.choice([60, 1800, 7200, 86_400])})

    def drain(self) -> str:
        """Drain a node, or undo it."""
        node = self.dice.choice(list(Node.objects.order_by("pk")))
        actor = Actor.system("storm")
        if node.draining_since is None and self.dice.random() < 0.4:
            nodes.drain(node=node, actor=actor)
            return "drain"
        nodes.undrain(node=node, actor=actor)
        return "undrain"

    def report(self) -> str:
        """What a node might say of one of its leases, in or out of order."""
        lease = self.pick()
        if lease is None or lease.node is None:
            return "nothing to report"
        event = self.dice.choice(NEXT_REPORTS[State(lease.state)])
        payload: dict[str, Any] = {"generation": lease.generation, "event": event, "container_id": lease.pk}
        if event == "ready":
            payload["evidence"] = good_evidence(lease)
        if event == "failed":
            payload["failure"] = self.dice.choice(["failed_launch", "failed_gpu", "failed_image"])
        reports.handle(node=lease.node, lease_id=lease.pk, payload=payload)
        return f"report {event}"

    def sweep(self) -> str:
        """Beat's work, while others do the same."""
        task = self.dice.choice([tasks.sweep_deadlines, tasks.sweep_holds, tasks.sweep_unanswered, tasks.sweep_silence])
        task()
        return "sweep"

    def pick(self) -> Lease | None:
        """A lease that is not over."""
        found = list(Lease.objects.filter(state__in=LIVE).select_related("node", "tenant").order_by("?")[:1])
        return found[0] if found else None

    def post_to(self, lease: Lease, action: str, body: dict[str, Any]) -> str:
        """An action on a lease by whoever holds the dice's token."""
        answer = self.call(self.dice.choice(self.tokens), f"leases/{lease.pk}/{action}", body)
        return f"{action} {answer.get('code') or 'done'}"

    def call(self, token: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST to the API; a status that no user should see is a fault."""
        answer = self.client.post(
            f"/api/v1/{path}", json.dumps(body), content_type="application/json", HTTP_AUTHORIZATION=f"Bearer {token}"
        )
        if answer.status_code not in REFUSALS:
            self.faults.append(f"{path}: {answer.status_code} {answer.content[:300]!r}")
        content: dict[str, Any] = answer.json()
        return content


def _run(number: int, seconds: float, tokens: list[str], gate: Any, results: Any) -> None:
    connections.close_all()  # the parent's, which a fork must not share
    player = Player(number, tokens)
    player.order()  # loads what a first request loads
    gate.wait()
    player.play(seconds)
    connections.close_all()
    results.put((dict(player.done), player.faults))


def storm(seconds: float) -> Counter[str]:
    """Let it rage; what was done, after checking that nothing happened that must not."""
    make.make_price()
    for _ in range(NODES):
        make.make_node(gpus=GPUS)
    tokens = []
    for _ in range(4):
        user = make.make_user()
        make.make_key(user)
        make.make_balance(make.tenant_of(user), 10**12)
        tokens.append(make.make_token(user)[1])
    connections.close_all()
    fork = multiprocessing.get_context("fork")
    results, gate = fork.Queue(), fork.Barrier(PROCESSES)
    players = [fork.Process(target=_run, args=(number, seconds, tokens, gate, results)) for number in range(PROCESSES)]
    for player in players:
        player.start()
    done: Counter[str] = Counter()
    faults: list[str] = []
    for _ in players:
        acts, bad = results.get(timeout=seconds + 120)
        done.update(acts)
        faults += bad
    for player in players:
        player.join(30)
    assert not faults, f"{len(faults)} faults, the first: {faults[0]}"
    return done


def assert_nothing_twice_and_nothing_lost() -> None:
    """Slots, allocations and states tell one story."""
    held = Counter(Allocation.objects.filter(released_at=None).values_list("slot_id", flat=True))
    assert set(held.values()) <= {1}
    used = dict(GpuSlot.objects.values_list("pk", "used_milli"))
    assert {slot for slot, milli in used.items() if milli} == set(held)
    assert set(used.values()) <= {0, 1000}
    assert len(used) == NODES * GPUS
    for lease in Lease.objects.all():
        wanted = lease.gpu_count if lease.state in LIVE else 0
        assert lease.allocations.filter(released_at=None).count() == wanted, (lease.pk, lease.state)
    doubled = UsageSegment.objects.filter(end=None).values_list("lease_id", flat=True)
    assert set(doubled) <= set(Lease.objects.filter(state=State.RUNNING).values_list("pk", flat=True))
    call_command("check_ledger")


def end_all() -> None:
    """Everybody goes home; every slot is free afterwards."""
    actor = Actor.system("storm")
    for node in Node.objects.all():
        nodes.undrain(node=node, actor=actor)
    for lease in Lease.objects.filter(state__in=LIVE).select_related("node"):
        assert lease.node is not None
        for event in ("stopped", "cleaned"):
            report = {"generation": lease.generation, "event": event, "container_id": lease.pk}
            reports.handle(node=lease.node, lease_id=lease.pk, payload=report)
    assert not GpuSlot.objects.exclude(used_milli=0).exists()
    assert not Lease.objects.filter(state__in=LIVE).exists()
    call_command("check_ledger")


def _storm_and_aftermath(seconds: float) -> None:
    done = storm(seconds)
    assert_nothing_twice_and_nothing_lost()
    end_all()
    assert done["order made"] > 0
    assert done["report cleaned"] > 0


def test_a_storm_of_sixteen_processes_sells_nothing_twice_and_loses_nothing() -> None:  # case B01
    _storm_and_aftermath(5)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_minute_of_storm_sells_nothing_twice_and_loses_nothing() -> None:  # case B01
    _storm_and_aftermath(60)
