"""A line for open terminals, and what counts as use."""

from __future__ import annotations

import pytest

from tests.nodes.gateway.rig import Lease, Node, Terminal, wait_until

pytestmark = [pytest.mark.rig]


@pytest.fixture(params=["1", "3"])
def processes(node: Node, request: pytest.FixtureRequest) -> str:
    """The gateway as one process and as several; a fresh one, which has seen no input yet."""
    node.stop_gateway()
    node.start_gateway("--processes", request.param)
    return str(request.param)


def usage(node: Node, lease: Lease) -> tuple[float | None, int]:
    """Seconds since the last input, and what is open."""
    facts = node.control("activity")["leases"][lease.id]
    return facts["last_input_s"], facts["sessions"]


def test_a_notice_comes_to_every_terminal_of_the_lease_and_into_no_program_s_output(
    node: Node, lease: Lease, empty_lease: Lease, processes: str
) -> None:
    with (
        Terminal(node, lease.id) as first,
        Terminal(node, lease.id) as second,
        Terminal(node, empty_lease.id) as other,
        node.background(node.command(lease.id, "cat")) as program,
    ):
        for terminal in (first, second, other):
            terminal.type("echo re''ady\n")
            terminal.read_until("ready")
        wait_until(lambda: lease.processes("cat"), "the program")

        answer = node.control("notice", lease=lease.id, text="This lease ends at 14:30\x1b[2J UTC.\r\nrm -rf /")

        assert answer == {"terminals": 2}
        for terminal in (first, second):
            shown = terminal.read_until("rm -rf / ***\r\n")
            assert "\r\n*** This lease ends at 14:30 [2J UTC.  rm -rf / ***\r\n" in shown
            assert "\x1b[2J" not in shown
        assert "***" not in other.ask("echo al''one\n")
        assert program.communicate(b"x\n", timeout=20)[0] == b"x\n"
    assert node.control("notice", lease="ls-nowhere", text="x") == {"terminals": 0}


def test_only_what_the_client_sends_counts_as_use(node: Node, lease: Lease, processes: str) -> None:
    if not (node.keys / "probe").exists():
        node.make_key("probe", "ed25519")
    node.admit(lease.id, "ed25519", probe="probe")
    assert node.ssh(lease.id, "probe", key="probe", stdin=b"not of a renter").returncode == 0
    assert node.ssh(lease.id, "echo out").stdout == b"out\n"
    with Terminal(node, lease.id) as terminal:
        wait_until(lambda: usage(node, lease)[1] == 1, "the terminal")
        terminal.resize(40, 120)
        assert usage(node, lease) == (None, 1)
        terminal.type("echo ty''ped\n")
        terminal.read_until("typed")
        since, opened = usage(node, lease)
    assert since is not None
    assert (since < 60, opened) == (True, 1)
    wait_until(lambda: usage(node, lease)[1] == 0, "the end of the terminal")
    node.admit(lease.id, "ed25519")


def test_sessions_and_input_of_all_processes_are_one_answer(node: Node, lease: Lease) -> None:
    node.stop_gateway()
    node.start_gateway("--processes", "3")
    with node.background(node.command(lease.id, "cat")), node.background(node.command(lease.id, "cat")):
        clients = [node.background(node.command(lease.id, "cat")) for _ in range(4)]
        for client in clients:
            client.__enter__()
        try:
            wait_until(lambda: usage(node, lease)[1] == 6, "six sessions")
        finally:
            for client in clients:
                client.__exit__(None, None, None)
    node.stop_gateway()
    node.start_gateway()


def test_bytes_into_a_forward_count_as_use(node: Node, lease: Lease) -> None:
    node.stop_gateway()
    node.start_gateway()
    node.ssh(lease.id, "/.lease/bin/busybox httpd -p 127.0.0.1:8003 -h /workspace")
    assert usage(node, lease)[0] is None

    node.ssh(lease.id, options=("-W", "127.0.0.1:8003"), stdin=b"GET / HTTP/1.0\r\n\r\n")

    assert usage(node, lease)[0] is not None


@pytest.mark.parametrize("question", [{"op": "keys"}, {"op": "else"}, {"op": "notice", "lease": "ls-distro"}, {}])
def test_a_question_that_makes_no_sense_is_answered_so(node: Node, question: dict[str, str]) -> None:
    operation = question.get("op", "")
    facts = {name: value for name, value in question.items() if name != "op"}

    assert "error" in node.control(operation, **facts)
    assert node.ask_gateway("ls-nowhere")["keys"] == []


def test_a_lease_that_has_ended_is_in_no_answer(node: Node, lease: Lease) -> None:
    node.admit("ls-over", "ed25519")
    wait_until(lambda: "ls-over" in node.control("activity")["leases"], "the lease")
    del node.admitted["ls-over"]
    node.write_leases()

    assert set(node.control("activity")["leases"]) == set(node.admitted)
    assert (node.run / "gateway/control.sock").stat().st_mode & 0o777 == 0o660
