"""The node API over HTTP: who gets in, and what every wrong field is answered with."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from nodes import payloads, services
from nodes.models import Gpu, Node
from tests import make
from tests.nodes.agentlike import UUIDS, enrolment, gpu, inventory, node_client

if TYPE_CHECKING:
    from portal.actor import Actor
    from tests.clients import ApiClient

pytestmark = pytest.mark.django_db

TOO_LONG = "x" * 5000


def answer(response: Any) -> dict[str, Any]:
    """The JSON body."""
    body: dict[str, Any] = json.loads(response.content)
    return body


def changed(body: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A deep copy of ``body`` with ``value`` at ``gpus.0.uuid``; an Ellipsis takes the field away."""
    copy: dict[str, Any] = json.loads(json.dumps(body))
    *way, last = path.split(".")
    spot: Any = copy
    for step in way:
        spot = spot[int(step)] if step.isdigit() else spot[step]
    if value is ...:
        del spot[last]
    else:
        spot[last] = value
    return copy


def test_a_machine_enrols_once_and_then_speaks_with_its_own_token(actor: Actor) -> None:
    node, token = services.add_node(name="n1", actor=actor)
    anonymous = node_client(None)
    enrolled = anonymous.post("enrol", enrolment(token))
    assert enrolled.status_code == 201
    assert enrolled["Cache-Control"] == "no-store"
    body = answer(enrolled)
    assert body["heartbeat_s"] == 10
    assert body["broker_url"] is None
    agent = node_client(body["node_token"])
    assert answer(agent.post("inventory", inventory())) == {}
    assert answer(agent.post("preflight", {"ok": True, "checks": [{"name": "engine", "ok": True, "detail": ""}]})) == {}
    assert Gpu.objects.leasable().get().node == node

    again = anonymous.post("enrol", enrolment(token))
    assert again.status_code == 401
    assert again["Content-Type"] == "application/problem+json"
    assert answer(again)["code"] == "enrolment_token_invalid"


@pytest.mark.parametrize("route", ["inventory", "preflight"])
@pytest.mark.parametrize("secret", [None, "", "lnt_unknown", "lnt_ü", "a b c"])
def test_nobody_but_a_node_gets_in(route: str, secret: str | None, node: Node) -> None:
    before = Node.objects.values().get()
    client = node_client(None)
    headers = {} if secret is None else {"Authorization": f"Bearer {secret}".encode().decode("latin-1")}
    refused = client.send("POST", route, inventory(), **headers)
    assert refused.status_code == 401
    assert refused["WWW-Authenticate"].startswith("Bearer")
    assert Node.objects.values().get() == before


def test_a_renter_is_no_node(node: Node, api: ApiClient) -> None:
    assert api.post("/api/node/v1/inventory", inventory()).status_code == 401


def test_a_revoked_node_is_told_so(node: Node, actor: Actor) -> None:
    agent = node_client(make.make_node_secret(node))
    services.revoke(node=node, actor=actor)
    refused = agent.post("inventory", inventory())
    assert refused.status_code == 401
    assert answer(refused)["code"] == "node_revoked"
    assert not Gpu.objects.exists()


def test_the_token_of_a_machine_that_was_replaced_opens_nothing(node: Node, actor: Actor) -> None:
    old = node_client(make.make_node_secret(node))
    token = services.new_enrolment_token(node=node, actor=actor)
    assert node_client(None).post("enrol", enrolment(token)).status_code == 201
    assert answer(old.post("inventory", inventory()))["code"] == "node_token_invalid"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("enrolment_token", ...),
        ("enrolment_token", None),
        ("enrolment_token", ""),
        ("enrolment_token", 5),
        ("enrolment_token", ["lne_x"]),
        ("enrolment_token", TOO_LONG),
        ("agent_version", TOO_LONG),
        ("hostname", "h" * 254),
        ("hostname", 17),
        ("machine_id", "m" * 65),
        ("machine_id", "nul\x00"),
        ("boot_id", "\ud800"),
        ("ssh_host", "../etc"),
        ("ssh_host", "a..b"),
        ("ssh_host", "-oProxyCommand=id"),
        ("ssh_host", "host name"),
        ("ssh_host", "h" * 254),
        ("ssh_port", 0),
        ("ssh_port", 65_536),
        ("ssh_port", "22"),
        ("ssh_port", True),
        ("ssh_port", 22.0),
        ("ssh_host_key", "ssh-ed25519 AAAA\nssh-rsa BBBB"),
        ("ssh_host_key", "not a key"),
    ],
)
def test_a_wrong_field_of_an_enrolment_is_named_and_uses_nothing_up(path: str, value: Any, actor: Actor) -> None:
    _, token = services.add_node(name="n1", actor=actor)
    refused = node_client(None).post("enrol", changed(enrolment(token), path, value))
    assert refused.status_code == 400
    assert list(answer(refused)["errors"]) == [path]
    assert node_client(None).post("enrol", enrolment(token)).status_code == 201


WRONG_IN_INVENTORY: list[tuple[str, Any]] = [
    ("simulated", "yes"),
    ("simulated", True),
    ("simulated", ...),
    ("driver_version", TOO_LONG),
    ("cuda_version", 12.8),
    ("ssh_host", "a b"),
    ("ssh_port", -1),
    ("ssh_host_key", TOO_LONG),
    ("gpus", ...),
    ("gpus", None),
    ("gpus", {}),
    ("gpus", "GPU-1"),
    ("gpus", [gpu(f"GPU-{n}") for n in range(65)]),
    ("gpus", [gpu(), gpu()]),
    ("gpus.0.uuid", "GPU-1,GPU-2"),
    ("gpus.0.uuid", "all"),
    ("gpus.0.uuid", "MIG-1"),
    ("gpus.0.uuid", "GPU-" + "1" * 61),
    ("gpus.0.uuid", ""),
    ("gpus.0.name", "n" * 97),
    ("gpus.0.name", ""),
    ("gpus.0.memory_bytes", 0),
    ("gpus.0.memory_bytes", -1),
    ("gpus.0.memory_bytes", 1 << 61),
    ("gpus.0.memory_bytes", 10**40),
    ("gpus.0.memory_bytes", "80 GB"),
    ("gpus.0.memory_bytes", 1.5),
    ("gpus.0.index", -1),
    ("gpus.0.index", 1024),
    ("gpus.0.pci_bus_id", "p" * 33),
    ("gpus.0.serial", 165012),
    ("gpus.0.compute_capability", 9.0),
    ("gpus.0.mig_mode", 0),
    ("gpus.0.mig_mode", None),
    ("gpus.0.healthy", "true"),
    ("gpus.0.fault", 79),
    ("machine", ...),
    ("machine", []),
    ("machine.cpu_cores", 0),
    ("machine.cpu_cores", 70_000),
    ("machine.memory_bytes", -1),
    ("machine.disk_bytes", 1 << 61),
    ("machine.kernel", "k" * 129),
    ("machine.cgroup_version", 3),
    ("capabilities", ...),
    ("capabilities.gpu_request", "privileged"),
    ("capabilities.gpu_request", "simulated"),
    ("capabilities.runtimes", "runc"),
    ("capabilities.runtimes", ["r"] * 33),
    ("capabilities.workspace_quota", 1),
]


@pytest.mark.parametrize(("path", "value"), WRONG_IN_INVENTORY)
def test_a_wrong_field_of_an_inventory_is_named_and_changes_nothing(
    path: str, value: Any, node: Node, agent: ApiClient
) -> None:
    before = Node.objects.values().get()
    refused = agent.post("inventory", changed(inventory(), path, value))
    assert refused.status_code == 400, refused.content
    (name,) = answer(refused)["errors"]
    assert name == ("simulated" if value == "simulated" else path) or name.startswith(f"{path}.")
    assert Node.objects.values().get() == before
    assert not Gpu.objects.exists()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("ok", "true"),
        ("ok", ...),
        ("checks", ...),
        ("checks", [{"name": "c", "ok": True}] * 33),
        ("checks.0.name", ""),
        ("checks.0.name", "n" * 65),
        ("checks.0.ok", None),
        ("checks.0.detail", 5),
    ],
)
def test_a_wrong_field_of_a_preflight_is_named_and_changes_nothing(
    path: str, value: Any, node: Node, agent: ApiClient
) -> None:
    body = {"ok": False, "checks": [{"name": "engine", "ok": False, "detail": ""}]}
    refused = agent.post("preflight", changed(body, path, value))
    assert refused.status_code == 400
    assert list(answer(refused)["errors"]) == [path]
    node.refresh_from_db()
    assert node.preflight_ok is True


def test_a_long_explanation_is_cut_and_not_refused(node: Node, agent: ApiClient) -> None:
    said = {"ok": False, "checks": [{"name": "gpu", "ok": False, "detail": "e\0" * 5000}]}
    assert agent.post("preflight", said).status_code == 200
    node.refresh_from_db()
    assert node.preflight_checks == [{"name": "gpu", "ok": False, "detail": "e" * 1000}]


@pytest.mark.parametrize("route", ["enrol", "inventory", "preflight"])
@pytest.mark.parametrize("body", ["", "{", "[]", "null", '"x"', '{"a": NaN}'])
def test_a_body_that_is_no_object_is_a_clean_refusal(route: str, body: str, agent: ApiClient) -> None:
    refused = agent.http.post(f"/api/node/v1/{route}", body, content_type="application/json", headers=agent.headers)
    assert refused.status_code == 400
    assert refused["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("route", ["enrol", "inventory", "preflight"])
def test_other_methods_are_refused(route: str, agent: ApiClient) -> None:
    for method in ("GET", "PUT", "PATCH", "DELETE"):
        assert agent.send(method, route).status_code == 405


def test_fields_of_a_newer_agent_are_ignored_and_logged_once(
    node: Node, agent: ApiClient, caplog: pytest.LogCaptureFixture
) -> None:
    payloads._logged.clear()
    body = inventory([gpu(UUIDS[0], nvlink_domain=3), gpu(UUIDS[1], nvlink_domain=3)], confidential=True)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert agent.post("inventory", body).status_code == 200
    said = [record.message for record in caplog.records if "unknown field" in record.message]
    assert sorted(name.rpartition(" ")[2] for name in said) == ["GpuIn.nvlink_domain", "InventoryIn.confidential"]
    assert Gpu.objects.leasable().count() == 2
