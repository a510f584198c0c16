"""Two machines with one token at the same moment, and two that claim one card, on PostgreSQL with real threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from django.db import connection

from nodes import services
from nodes.models import EnrolmentToken, Gpu, Node
from portal.errors import DomainError
from tests import make
from tests.nodes.agentlike import enrolment, gpu, inventory

if TYPE_CHECKING:
    from collections.abc import Callable

    from portal.actor import Actor

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _on_postgres() -> None:
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL runs two writers at once")


def at_once(calls: list[Callable[[], object]]) -> list[object]:
    """Run all calls in threads that start together; an exception is an answer too."""
    barrier = threading.Barrier(len(calls))
    answers: list[object] = [None] * len(calls)

    def run(index: int) -> None:
        try:
            barrier.wait()
            answers[index] = calls[index]()
        except Exception as error:  # noqa: BLE001  # the test looks at whatever came
            answers[index] = error
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_of_twenty_machines_with_one_token_one_becomes_the_node(actor: Actor) -> None:
    # case G02
    node, token = services.add_node(name="n1", actor=actor)

    def machine(index: int) -> Callable[[], object]:
        return lambda: services.enrol(payload=enrolment(token, machine_id=f"m{index}"), peer_ip=None)

    answers = at_once([machine(index) for index in range(20)])
    won = [answer for answer in answers if isinstance(answer, dict)]
    refused = [answer.code for answer in answers if isinstance(answer, DomainError)]
    assert len(won) == 1
    assert refused == ["enrolment_token_invalid"] * 19
    node.refresh_from_db()
    assert node.machine_id == f"m{answers.index(won[0])}"
    assert EnrolmentToken.objects.filter(used_at__isnull=False).count() == 1


def test_of_two_machines_that_claim_one_card_one_gets_it(actor: Actor) -> None:
    # case G02
    nodes = [make.make_node(gpus=0) for _ in range(8)]
    body = inventory([gpu()])

    def claim(node: Node) -> Callable[[], object]:
        return lambda: services.record_inventory(node=node, payload=body)

    assert at_once([claim(node) for node in nodes]) == [None] * 8
    assert Gpu.objects.present().count() == 1
    assert sum(bool(Node.objects.get(pk=node.pk).notices) for node in nodes) == 7


def test_two_names_at_once_make_one_node(actor: Actor) -> None:
    answers = at_once([lambda: services.add_node(name="n1", actor=actor)] * 8)
    assert sum(isinstance(answer, tuple) for answer in answers) == 1
    assert sum(isinstance(answer, DomainError) and answer.status == 400 for answer in answers) == 7
