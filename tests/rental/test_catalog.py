"""Offers: live counts, prices, reasons, and the number of queries."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from nodes.models import Gpu, GpuSlot, Node
from rental import catalog
from tests import make
from tests.make import H100

pytestmark = pytest.mark.django_db


def only() -> catalog.Offer:
    (offer,) = catalog.offers()
    return offer


def test_an_offer_says_what_is_free_now_and_what_it_costs(node: Node) -> None:
    make.make_node(gpus=4)
    GpuSlot.objects.filter(gpu__node=node, gpu__index__lt=6).update(used_milli=1000)
    offer = only()
    assert (offer.id, offer.gpu_model, offer.short_name) == ("nvidia-h100-80gb-hbm3", H100, "H100 SXM")
    assert (offer.gpu_memory_gb, offer.total_count, offer.free_count) == (80, 12, 6)
    assert (offer.max_gpu_count, offer.max_free_count) == (8, 4)
    assert offer.prices == {"on_demand": 2_490_000, "spot": 498_000}  # reserved cannot be ordered yet
    assert (offer.currency, offer.simulated, offer.reasons) == ("USD", False, ())
    assert offer.facts.architecture == "Hopper"
    assert offer.facts.source


def test_an_offer_with_nothing_free_says_why(node: Node) -> None:
    GpuSlot.objects.filter(gpu__index=0).update(used_milli=1000)
    Gpu.objects.filter(index=1).update(health=Gpu.Health.QUARANTINED)
    Gpu.objects.filter(index=2).update(mig_mode=True)
    Gpu.objects.filter(index__gt=2).delete()
    offer = only()
    assert offer.free_count == 0
    assert [reason.text for reason in offer.reasons] == ["1 is leased", "2 are out of service"]


def test_without_a_price_an_offer_says_so_and_comes_last(db: None) -> None:
    make.make_node(gpus=1, gpu_model="Tesla T4")
    make.make_node(gpus=1)
    make.make_price()
    priced, unpriced = catalog.offers()
    assert priced.gpu_model == H100
    assert (unpriced.short_name, unpriced.prices, unpriced.reasons[0].code) == ("T4", {}, "no_price")


def test_hardware_that_is_gone_is_in_no_offer(node: Node) -> None:
    Gpu.objects.filter(index=0).update(retired_at=node.enrolled_at)
    assert only().total_count == 7
    Node.objects.update(revoked_at=node.enrolled_at)
    assert catalog.offers() == []


def test_filters_narrow_the_list(node: Node) -> None:
    make.make_node(gpus=2, gpu_model="NVIDIA A10", memory_bytes=24 << 30, cuda_version="11.4")
    make.make_price("NVIDIA A10", on_demand=600_000, spot=120_000)

    def models(**filters: object) -> list[str]:
        return [offer.gpu_model for offer in catalog.offers(**filters)]  # type: ignore[arg-type]

    assert models() == ["NVIDIA A10", H100]
    assert models(gpu_memory_gb=80) == [H100]
    assert models(gpu_count=4) == [H100]
    assert models(cuda_min="12.4") == [H100]
    assert models(max_price_micros_per_hour=1_000_000) == ["NVIDIA A10"]
    assert models(plan="spot", max_price_micros_per_hour=498_000) == ["NVIDIA A10", H100]
    assert models(plan="reserved") == []
    GpuSlot.objects.filter(gpu__model=H100).update(used_milli=1000)
    assert models(only_free=True) == ["NVIDIA A10"]
    assert models(gpu_model=H100) == [H100]


def test_the_number_of_queries_does_not_grow_with_the_fleet(node: Node) -> None:
    counts = []
    for _ in range(2):
        with CaptureQueriesContext(connection) as queries:
            catalog.offers()
        counts.append(len(queries))
        for n in range(10):
            make.make_node(gpus=8, gpu_model=f"NVIDIA Model {n}")
            make.make_price(f"NVIDIA Model {n}")
    assert counts == [2, 2]


def test_every_row_of_our_data_has_a_name_and_a_source() -> None:
    known = catalog._known_models()
    assert len(known) == 47
    assert all(facts.short_name and facts.source for facts in known.values())
    assert catalog.model_facts("NVIDIA GeForce RTX 9999").short_name == "RTX 9999"
