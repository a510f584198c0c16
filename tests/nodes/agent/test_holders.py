"""Network holders without an engine: who has which, what a lease's container may join, addresses, spare volumes."""

import os
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any

import pytest

from nodes.agent import links
from nodes.agent.config import Options
from nodes.agent.desired import parse_lease
from nodes.agent.failures import AgentError
from nodes.agent.holderbook import Holder, HolderBook
from nodes.agent.holderbox import holder_body, nest_body
from nodes.agent.hostconfig import NodeFacts, build_body, check_hostconfig
from nodes.agent.links import keep_range
from nodes.agent.namespaces import inside, network_of
from nodes.agent.network import chains, holder_interface, lease_resolvers
from nodes.agent.spares import Spares
from tests.nodes.agent.fake_engine import inspect_of
from tests.nodes.agent.fake_portal import lease

GPU = "GPU-11111111-aaaa-4bbb-8ccc-000000000001"
HOLDER = Holder("lessor-holder-1", "a" * 64, 0, 0, IPv4Interface("10.231.0.6/30"), Path("/state/holders/lessor-ls-a-1"))


def in_holder(**changes: object) -> dict[str, Any]:
    """What the engine would say of a container that joined HOLDER."""
    wanted = parse_lease(lease("ls-a", [GPU], "img:1", **changes))
    body = build_body(wanted, NodeFacts("nd-1", "device_request", Path("/b"), 1024, memlock=False), Path("/w"), HOLDER)
    inspect = inspect_of(dict(body))
    inspect["NetworkSettings"]["Networks"] = {}
    return inspect


def test_a_container_may_join_a_holder_and_has_its_own_files_of_etc() -> None:
    inspect = in_holder()
    assert check_hostconfig(inspect) == []
    assert inspect["HostConfig"]["NetworkMode"] == f"container:{HOLDER.container_id}"
    etc = {mount["Destination"] for mount in inspect["Mounts"]} - {"/.lease", "/workspace"}
    assert etc == {"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"}


@pytest.mark.parametrize("mode", ["container:lessor-ls-b-1", "container:", "host", "none", f"container:{'a' * 63}"])
def test_a_container_that_joined_anything_else_is_not_as_ordered(mode: str) -> None:
    inspect = in_holder()
    inspect["HostConfig"]["NetworkMode"] = mode
    assert any("not the lease's own" in deviation for deviation in check_hostconfig(inspect))


def test_a_container_in_a_holder_and_a_network_besides_is_not_as_ordered() -> None:
    inspect = in_holder()
    inspect["NetworkSettings"]["Networks"] = {"bridge": {}}
    assert check_hostconfig(inspect) != []


def test_a_container_that_shares_the_nests_files_is_not_as_ordered() -> None:
    inspect = in_holder()
    inspect["Mounts"] = [mount for mount in inspect["Mounts"] if mount["Destination"] != "/etc/hosts"]
    assert any("bind mounts" in deviation for deviation in check_hostconfig(inspect))


def test_holders_are_made_with_nothing_but_what_they_need() -> None:
    nest, holder = nest_body("i", "nd-1"), holder_body("i", "nd-1", "n" * 64)
    assert nest["HostConfig"]["NetworkMode"] == "none"  # type: ignore[index]  # a JSON body
    assert "CapAdd" not in nest["HostConfig"]  # type: ignore[operator]
    assert holder["HostConfig"]["NetworkMode"] == f"container:{'n' * 64}"  # type: ignore[index]
    assert not {"Binds", "Env"} & {*holder, *holder["HostConfig"]}  # type: ignore[misc]


def test_the_book_remembers_who_has_which_holder_over_a_restart(tmp_path: Path) -> None:
    book = HolderBook(tmp_path / "holders")
    book.open()
    given = book.write("lessor-ls-a-1", HOLDER, "ls-a", ("192.0.2.53",))
    assert (given.files / "hosts").read_text().splitlines()[-1] == "10.231.0.6\tls-a"
    assert (given.files / "resolv.conf").read_text() == "nameserver 192.0.2.53\n"
    [(name, found)] = HolderBook(tmp_path / "holders").open().items()
    assert (name, found.name, found.address, found.lives) == ("lessor-ls-a-1", HOLDER.name, HOLDER.address, False)
    book.remove("lessor-ls-a-1")
    assert book.open() == {}


def test_a_damaged_entry_of_the_book_is_removed(tmp_path: Path) -> None:
    (tmp_path / "lessor-ls-a-1").mkdir()
    (tmp_path / "lessor-ls-a-1" / "holder").write_text("half")
    assert HolderBook(tmp_path).open() == {}
    assert list(tmp_path.iterdir()) == []


def test_a_range_of_addresses_is_kept_while_no_route_of_the_machine_overlaps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = [("eth0", IPv4Network("0.0.0.0/0")), ("eth0", IPv4Network("10.0.0.0/8"))]
    monkeypatch.setattr(links, "_routes", lambda: routes)
    assert keep_range(tmp_path / "range", "") == links.RANGES[1]
    routes[1] = ("lsrh0123", IPv4Network("172.29.4.0/30"))  # our own
    assert keep_range(tmp_path / "range", "") == links.RANGES[1]
    routes.append(("tun0", IPv4Network("172.29.0.0/24")))
    assert keep_range(tmp_path / "range", "") == links.RANGES[0]
    routes.append(("eth1", IPv4Network("0.0.0.0/1")))
    routes.append(("eth1", IPv4Network("128.0.0.0/1")))
    assert keep_range(tmp_path / "range", "") is None


@pytest.mark.parametrize("wanted", ["10.0.0.0/30", "10.0.0.1/16", "fd00::/64", "ten"])
def test_a_range_that_makes_no_sense_is_refused_by_name(wanted: str, tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="holder_network"):
        keep_range(tmp_path / "range", wanted)


def test_leases_ask_name_servers_that_they_can_reach(tmp_path: Path) -> None:
    stub, real = tmp_path / "stub", tmp_path / "real"
    stub.write_text("nameserver 127.0.0.53\nnameserver ::1\nsearch corp.example\n")
    real.write_text("nameserver 10.0.0.2\nnameserver 2001:db8::1\nnameserver 192.0.2.1\n")
    assert lease_resolvers((stub, real)) == ("10.0.0.2", "192.0.2.1")
    assert lease_resolvers((stub,)) == ("8.8.8.8", "8.8.4.4")


def test_the_interface_of_a_holder_falls_under_the_rules_of_leases_and_no_bridge_has_its_prefix() -> None:
    assert holder_interface(HOLDER.name).startswith("lsrh")
    assert len(holder_interface(HOLDER.name)) == 15
    first, second = chains(())["LESSOR-ACCEPT"]
    assert "ESTABLISHED" in first  # towards a lease comes only what it asked for
    assert "-i lsrh+" in second


@pytest.mark.parametrize(("holders", "gpus", "count"), [(-1, 0, 2), (-1, 4, 6), (-1, 16, 8), (0, 8, 0), (20, 1, 20)])
def test_the_pool_grows_with_the_gpus_unless_it_is_told_its_size(holders: int, gpus: int, count: int) -> None:
    assert Options(holders=holders).holder_count(gpus) == count


def test_a_process_that_is_gone_has_no_network() -> None:
    assert network_of(os.getpid()) == network_of("self") != 0
    assert network_of(0) == 0
    with pytest.raises(OSError, match=r"/proc/0/ns/net"):
        inside(0, "net", lambda: None)


def test_a_spare_volume_is_used_once_and_only_for_its_size(tmp_path: Path) -> None:
    def make(path: Path, size: int) -> None:
        path.write_bytes(b"x" * size)

    spares = Spares(tmp_path / "spare", make, kept=2)
    assert not spares.take(3, tmp_path / "first")
    spares.fill()
    assert spares.take(3, tmp_path / "second")
    assert (tmp_path / "second").read_bytes() == b"xxx"
    assert not spares.take(5, tmp_path / "third")
    spares.fill()
    assert {path.stat().st_size for path in (tmp_path / "spare").iterdir()} == {5}
