"""The operators' pages of nodes and GPUs."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape

from nodes import services
from nodes.models import Gpu, Node
from portal.models import AuditEvent
from tests import make
from tests.nodes.agentlike import enrolment

if TYPE_CHECKING:
    from portal.models import Tenant, User

pytestmark = pytest.mark.django_db

LIST = "admin:nodes_node_changelist"


@pytest.fixture
def desk(operator: User) -> Client:
    """The operator's browser."""
    client = Client()
    client.force_login(operator)
    return client


def text(response: Any) -> str:
    """The page."""
    assert response.status_code == 200
    return str(response.content.decode())


def test_the_list_says_in_a_word_how_each_node_is(desk: Client) -> None:
    now = timezone.now()
    make.make_node("n-ready", gpus=3)
    make.make_node("n-silent", last_seen_at=now - timedelta(seconds=91))
    make.make_node("n-draining", draining_since=now)
    make.make_node("n-failing", preflight_ok=False, simulated=True)
    make.make_node("n-off", clock_skew_s=-600)
    Node.objects.create(name="n-new")
    Gpu.objects.filter(node__name="n-ready").first().slots.update(used_milli=1000)  # type: ignore[union-attr]
    make.make_gpu(Node.objects.get(name="n-ready"), mig_mode=True)
    page = text(desk.get(reverse(LIST)))
    rows = dict(re.findall(r"<tr>.*?>(n-\w+)</a></th>(.*?)</tr>", page, re.DOTALL))
    said = {name: re.sub(r"<[^>]+>", "|", row) for name, row in rows.items()}
    for name, words in {
        "n-ready": ["|ready|", "|2 / 4|", "|real|"],
        "n-silent": ["|silent|", "|4 / 4|"],
        "n-draining": ["|draining|"],
        "n-failing": ["|not ready|", "|simulated|"],
        "n-off": ["|off by -600 s|"],
        "n-new": ["|not enrolled|", "|0 / 0|"],
    }.items():
        for word in words:
            assert word in said[name], (name, word)


@pytest.mark.parametrize("url", [LIST, "admin:nodes_gpu_changelist"])
def test_the_number_of_queries_of_a_list_does_not_grow(
    url: str, desk: Client, tenant: Tenant, django_assert_num_queries: Any
) -> None:
    # case I01
    from django.db import connection
    from django.test.utils import CaptureQueriesContext

    make.make_lease(tenant)
    desk.get(reverse(url))
    with CaptureQueriesContext(
        connection,
    ) as few:
        desk.get(reverse(url))
    for _ in range(5):
        make.make_lease(tenant, node=make.make_node(gpus=4))
    with django_assert_num_queries(len(few)):
        desk.get(reverse(url))


def test_adding_a_node_shows_a_command_once_that_enrols(desk: Client) -> None:
    page = desk.post(reverse("admin:nodes_node_add"), {"name": "ams-gpu-02", "site": "ams", "ssh_port": "2201"})
    assert "no-store" in page["Cache-Control"]
    (command,) = re.findall(r"<code>(.*?)</code>", text(page))
    assert command.endswith("--ssh-port 2201")
    token = command.split("--token ")[1].split()[0]
    node = Node.objects.get(name="ams-gpu-02")
    assert services.enrol(payload=enrolment(token), peer_ip=None)["node_id"] == node.pk
    assert AuditEvent.objects.get(action="node.added").actor_label == "operator@example.test"
    assert token not in text(desk.get(reverse("admin:nodes_node_change", args=[node.pk])))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"name": "AMS"}, "lower-case letters, digits and hyphens"),
        ({"name": ".."}, "lower-case letters, digits and hyphens"),
        ({"name": "taken"}, "in use by another node"),
        ({"name": "n1", "ssh_host": "a b"}, "host name or an IP address"),
        ({"name": "n1", "ssh_port": "70000"}, "1 to 65535"),
        ({"name": "n1", "site": "s" * 64}, "at most 63"),
    ],
)
def test_a_wrong_value_is_said_beside_its_field(values: dict[str, str], sentence: str, desk: Client) -> None:
    # case G02
    make.make_node("taken", gpus=0)
    assert sentence in text(desk.post(reverse("admin:nodes_node_add"), values))
    assert Node.objects.count() == 1


@pytest.mark.parametrize(
    ("button", "action", "status"),
    [("drain", "node.drained", "draining"), ("wake", "node.woken", "ready"), ("revoke", "node.revoked", "revoked")],
)
def test_a_button_explains_and_then_acts(button: str, action: str, status: str, desk: Client) -> None:
    node = make.make_node(gpus=1)
    url = reverse(f"admin:nodes_node_{button}", args=[node.pk])
    assert url in text(desk.get(reverse("admin:nodes_node_change", args=[node.pk])))
    text(desk.get(url))
    node.refresh_from_db()
    assert node.status() == "ready", "looking changes nothing"
    assert desk.post(url).status_code == 302
    node.refresh_from_db()
    assert node.status() == status
    event = AuditEvent.objects.get(action=action)
    assert (event.object_id, event.actor_label) == (node.pk, "operator@example.test")


def test_undrain_takes_the_place_of_drain_and_a_revoked_node_has_no_buttons(desk: Client) -> None:
    node = make.make_node(gpus=0, draining_since=timezone.now())
    page = reverse("admin:nodes_node_change", args=[node.pk])
    undrain = reverse("admin:nodes_node_undrain", args=[node.pk])
    assert undrain in text(desk.get(page))
    desk.post(undrain)
    node.refresh_from_db()
    assert node.status() == "ready"
    desk.post(reverse("admin:nodes_node_revoke", args=[node.pk]))
    assert "/revoke/" not in text(desk.get(page))
    assert "is revoked" in text(desk.post(reverse("admin:nodes_node_drain", args=[node.pk]), follow=True))


def test_a_new_command_is_shown_once_and_ends_the_one_before(desk: Client) -> None:
    node = make.make_node(gpus=0)
    url = reverse("admin:nodes_node_command", args=[node.pk])
    assert "Earlier commands" in text(desk.get(url))
    tokens = [re.findall(r"lne_[\w-]+", text(desk.post(url)))[0] for _ in range(2)]
    with pytest.raises(services.EnrolmentTokenInvalid):
        services.enrol(payload=enrolment(tokens[0]), peer_ip=None)
    services.enrol(payload=enrolment(tokens[1]), peer_ip=None)


def test_what_an_operator_should_know_stands_on_the_node_page(desk: Client) -> None:
    sentence = 'GPU <b>"x"</b> is present on node owner'
    checks = [{"name": "gpu", "ok": False, "detail": "no device <i>"}]
    node = make.make_node(notices=[sentence], broker_note="pull only", preflight_checks=checks, machine={"os": "<u>"})
    page = text(desk.get(reverse("admin:nodes_node_change", args=[node.pk])))
    for words in (escape(sentence), "pull only", "no device &lt;i&gt;", "os: &lt;u&gt;", node.gpus.all()[0].uuid):
        assert words in page


def test_no_status_or_fact_can_be_typed(desk: Client) -> None:
    # case H06
    node = make.make_node(gpus=1)
    before = (Node.objects.values().get(), Gpu.objects.values().get())
    values = {"name": "other", "preflight_ok": "on", "health": "lost", "node": node.pk, "ssh_host": "evil.example.test"}
    for url in (
        reverse("admin:nodes_node_change", args=[node.pk]),
        reverse("admin:nodes_gpu_change", args=[node.gpus.get().pk]),
    ):
        assert desk.post(url, values).status_code == 403
    assert (Node.objects.values().get(), Gpu.objects.values().get()) == before


def test_a_gpu_leaves_service_and_comes_back_with_a_reason(desk: Client) -> None:
    card = make.make_node(gpus=1).gpus.get()
    page = reverse("admin:nodes_gpu_change", args=[card.pk])
    quarantine, back = (reverse(f"admin:nodes_gpu_{name}", args=[card.pk]) for name in ("quarantine", "return"))
    assert quarantine in text(desk.get(page))
    assert "required" in text(desk.post(quarantine, {"reason": ""}))
    desk.post(quarantine, {"reason": "fan is loud"})
    card.refresh_from_db()
    assert (card.health, card.health_note) == ("quarantined", "fan is loud")
    assert back in text(desk.get(page))
    desk.post(back, {"reason": "new fan"})
    card.refresh_from_db()
    assert card.health == "healthy"
    assert AuditEvent.objects.get(action="gpu.returned").data == {"note": "new fan"}
    assert "is not quarantined" in text(desk.post(back, {"reason": "x"}, follow=True))


def test_a_gpu_shows_the_lease_that_holds_it(desk: Client, tenant: Tenant) -> None:
    lease = make.make_lease(tenant)
    assert lease.pk in text(desk.get(reverse("admin:nodes_gpu_changelist")))


def test_staff_without_the_right_presses_no_button(operator: User, desk: Client) -> None:
    # case H03
    operator.is_superuser = False
    operator.save(update_fields=["is_superuser"])
    node = make.make_node(gpus=1)
    pages = [
        reverse(f"admin:nodes_node_{name}", args=[node.pk])
        for name in ("drain", "undrain", "wake", "revoke", "command")
    ]
    pages += [reverse(f"admin:nodes_gpu_{name}", args=[node.gpus.get().pk]) for name in ("quarantine", "return")]
    pages += [reverse("admin:nodes_node_add")]
    for url in pages:
        assert desk.get(url).status_code == 403, url
        assert desk.post(url, {"reason": "x", "name": "n1"}).status_code == 403, url
    assert (Node.objects.get().status(), Gpu.objects.get().health) == ("ready", "healthy")
