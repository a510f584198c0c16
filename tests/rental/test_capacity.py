"""The short way to a placement gives the long way's answer."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.utils import timezone

from nodes.models import Gpu, GpuSlot
from rental import capacity, fleet, placement
from tests import make
from tests.rental.factories import a_request

if TYPE_CHECKING:
    from nodes.models import Node

pytestmark = pytest.mark.django_db

LARGE, SMALL = 85_520_809_984, 42_949_672_960


def some_node(pick: random.Random) -> Node:
    """Any of what a fleet holds: full, draining, silent, not ready, with broken cards, with older drivers."""
    now = timezone.now()
    values: dict[str, Any] = {}
    odd = pick.random()
    if odd < 0.1:
        values["draining_since"] = now
    elif odd < 0.2:
        values["last_seen_at"] = now - timedelta(minutes=5)
    elif odd < 0.3:
        values["preflight_ok"] = False
    elif odd < 0.4:
        values["revoked_at"] = now
    elif odd < 0.6:
        values["cuda_version"] = "11.8"
    node = make.make_node(gpus=0, **values)
    for index in range(pick.randint(0, 8)):
        facts: dict[str, Any] = {"memory_bytes": SMALL} if pick.random() < 0.1 else {}
        if pick.random() < 0.2:
            facts |= pick.choice([{"health": Gpu.Health.QUARANTINED}, {"mig_mode": True}, {"retired_at": now}])
        make.make_gpu(node, index=index, slots=pick.choice([0, 1, 1, 1, 2]), **facts)
    return node


@pytest.mark.parametrize("seed", range(12))
def test_an_order_gets_from_a_few_nodes_what_it_would_get_from_the_whole_fleet(seed: int) -> None:
    pick = random.Random(seed)  # noqa: S311  # a fleet to look at
    for _ in range(pick.randint(1, 12)):
        some_node(pick)
    slots = list(GpuSlot.objects.all())
    GpuSlot.objects.filter(pk__in=[slot.pk for slot in slots if pick.random() < 0.5]).update(used_milli=1000)
    for count in (1, 2, 3, 8):
        for filters in ({}, {"gpu_memory_gb": 80}, {"cuda_min": "12.0"}):
            request, now = a_request(gpu_count=count, **filters), timezone.now()
            memory = request.gpu_memory_gb or 0
            gpus = fleet.read(now=now, gpu_model=request.gpu_model)
            fitting = [g for g in gpus if fleet.admits(g, gpu_memory_gb=memory, cuda_min=request.cuda_min)]
            whole = placement.place(fleet.snapshot(fitting), placement.Request(count))
            assert capacity._decide(request, memory, now) == whole


def test_a_large_fleet_is_not_read_for_an_order_that_fits() -> None:
    for _ in range(10):
        make.make_node(gpus=2)
    found = fleet.candidates(now=timezone.now(), gpu_model=make.H100, gpu_count=1)
    assert len({gpu.node_id for gpu in found}) == fleet.CANDIDATES
