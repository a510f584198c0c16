"""Shells and commands through the gateway, with the real OpenSSH client and a real engine."""

from __future__ import annotations

import hashlib
import os
import random
import re
import signal
import subprocess

import pytest

from tests.nodes.gateway.rig import Lease, Node, Terminal, wait_until

pytestmark = [pytest.mark.rig]


def test_a_command_gives_its_output_its_stderr_apart_and_its_exit_status(node: Node, lease: Lease) -> None:
    done = node.ssh(lease.id, "echo out; echo err >&2; exit 7")

    assert (done.stdout, done.stderr, done.returncode) == (b"out\n", b"err\n", 7)


def test_a_client_with_its_own_defaults_gets_a_fast_cipher(node: Node, lease: Lease) -> None:
    done = node.ssh(lease.id, "true", options=("-v",))

    chosen = set(re.findall(r"cipher: (\S+)", done.stderr.decode()))
    assert chosen
    assert chosen <= {"aes128-gcm@openssh.com", "aes128-ctr"}  # which of them is for the client's version to choose


def test_twenty_megabytes_of_input_arrive_whole_and_end(node: Node, lease: Lease) -> None:
    data = random.Random(1).randbytes(20_000_000)  # noqa: S311  the same in each run

    done = node.ssh(lease.id, "sha256sum", stdin=data)

    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_twenty_megabytes_of_output_arrive_whole(node: Node, lease: Lease) -> None:
    done = node.ssh(lease.id, "dd if=/dev/zero bs=1000000 count=20; echo end >&2")

    assert len(done.stdout) == 20_000_000
    assert done.stderr.endswith(b"end\n")


def test_clients_that_read_late_still_get_the_last_byte_and_the_status(node: Node, lease: Lease) -> None:
    """Around these sizes the process ends with output left in its pipe, which an engine throws away after 2 s."""
    sizes = [3_500_000 + 50_000 * step for step in range(12)]
    before = len(node.audit("session"))
    clients = []
    for size in sizes:
        with (node.directory / f"late-{size}").open("wb") as output:
            wait = "while [ ! -e /workspace/go ]; do sleep 0.1; done"
            command = f"{wait}; dd if=/dev/zero bs=50000 count={size // 50_000} 2>/dev/null; echo END; exit 9"
            clients.append(subprocess.Popen(node.command(lease.id, command), stdin=subprocess.DEVNULL, stdout=output))
    wait_until(lambda: len(node.audit("session")) == before + len(sizes), "the sessions", 60)
    for client in clients:
        os.kill(client.pid, signal.SIGSTOP)
    (node.directory / f"workspace-{lease.id}/go").touch()
    with pytest.raises(subprocess.TimeoutExpired):  # longer than the engine's patience
        clients[0].wait(5)
    for client in clients:
        os.kill(client.pid, signal.SIGCONT)
    statuses = [client.wait(60) for client in clients]

    received = [(node.directory / f"late-{size}").stat().st_size - size for size in sizes]
    assert (received, statuses) == ([4] * len(sizes), [9] * len(sizes))


def test_a_session_has_the_environment_of_the_first_process_and_the_bundle_at_the_end_of_its_path(
    node: Node, lease: Lease
) -> None:
    shown = node.ssh(lease.id, "echo $FROM_IMAGE $NVIDIA_VISIBLE_DEVICES $HOME $USER $SHELL $PATH; pwd; tool").stdout

    assert shown.decode().split("\n")[:3] == [
        "yes GPU-test /root root /bin/bash /opt/tool/bin:/usr/bin:/bin:/.lease/bin",
        "/workspace",
        "tool of the image",
    ]
    connection = node.ssh(lease.id, "echo $SSH_CONNECTION").stdout.split()
    assert connection[0] == b"127.0.0.1"


def test_a_login_shell_reads_the_profile_and_keeps_the_path_of_the_image(node: Node, lease: Lease) -> None:
    done = node.ssh(lease.id, options=("-tt",), stdin=b"echo path=$PATH\nexit\n")

    assert b"path=/opt/tool/bin:/usr/bin:/bin:/.lease/bin:/usr/bin:/bin" in done.stdout


def test_a_script_on_standard_input_is_run_by_the_shell(node: Node, lease: Lease) -> None:
    done = node.ssh(lease.id, options=("-T",), stdin=b"echo one\nexit 3\n")

    assert (done.stdout, done.returncode) == (b"one\n", 3)


def test_a_terminal_has_the_size_of_the_clients_from_the_first_moment(node: Node, lease: Lease) -> None:
    with Terminal(node, lease.id, "stty size; tty; exit 5", rows=33, cols=111) as terminal:
        assert terminal.client.wait(30) == 5
        shown = terminal.read_all()

    assert shown.startswith("33 111")
    assert "/dev/pts/" in shown


def test_a_terminal_follows_when_the_window_changes(node: Node, lease: Lease) -> None:
    with Terminal(node, lease.id, rows=24, cols=80) as terminal:
        terminal.type("PS1=; stty -echo\n")
        terminal.resize(50, 132)
        wait_until(lambda: "50 132" in terminal.ask("stty size\n"), "the new size")
        terminal.type("exit 4\n")
        assert terminal.client.wait(30) == 4


def test_an_interrupt_typed_in_a_terminal_ends_the_program_in_the_foreground(node: Node, lease: Lease) -> None:
    with Terminal(node, lease.id) as terminal:
        terminal.type("PS1=; sleep 77777\n")
        wait_until(lambda: lease.processes("77777"), "the program")
        terminal.type("\x03")
        wait_until(lambda: not lease.processes("77777"), "its end")
        terminal.type("exit 0\n")
        terminal.client.wait(30)


def test_end_of_input_does_not_hang_up_a_terminal(node: Node, lease: Lease) -> None:
    done = node.ssh(lease.id, "sleep 0.5; echo still here", options=("-tt",))

    assert b"still here" in done.stdout
    assert done.returncode == 0


def test_several_sessions_share_one_connection(node: Node, lease: Lease) -> None:
    control = f"{node.directory}/mux"
    master = ("-o", "ControlMaster=yes", "-o", f"ControlPath={control}", "-N")
    logins = len(node.audit("login"))
    with node.background(node.command(lease.id, options=master)) as client:
        wait_until(lambda: os.path.exists(control), "the shared connection")  # noqa: PTH110  a socket, while it is made
        slaves = [
            subprocess.Popen(
                node.command(lease.id, f"echo {number}; exit {number}", options=("-o", f"ControlPath={control}")),
                stdout=subprocess.PIPE,
            )
            for number in range(5)
        ]
        shown = [(slave.communicate(timeout=60)[0], slave.returncode) for slave in slaves]
        client.terminate()

    assert shown == [(f"{number}\n".encode(), number) for number in range(5)]
    assert len(node.audit("login")) == logins + 1


def test_a_user_of_the_image_other_than_root_is_who_logs_in(node: Node) -> None:
    lease = node.make_lease("ls-ada", "distro-ada")

    shown = node.ssh(lease.id, "echo $USER $HOME $UID; cd; pwd").stdout

    assert shown == b"ada /home/ada 1000\n/home/ada\n"
