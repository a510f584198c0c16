"""The smaller parts of the agent: options, identity, lock, portal client, readiness proof, GPUs."""

import asyncio
import json
import os
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncssh
import pytest

from nodes.agent import probe
from nodes.agent.agent import take_lock
from nodes.agent.config import Identity, load_identity, load_options, save
from nodes.agent.contact import Contact, now
from nodes.agent.desired import parse_lease
from nodes.agent.failures import AgentError, LaunchError, image_error
from nodes.agent.gateway_link import GatewayLink
from nodes.agent.gpus import Gpus, GpuUnreadableError
from nodes.agent.heartbeat import gpu_request
from nodes.agent.main import main
from nodes.agent.network import BLOCKED, bridge_name, chains, private_resolvers
from nodes.agent.portal import PortalClient, PortalRefusedError, PortalUnavailableError, check_url
from nodes.agent.probe import ProbeKey, SshProver
from nodes.gateway.host_key import ensure_host_key
from tests.nodes.agent.fake_portal import ENROLMENT_TOKEN, TOKEN, FakePortal, lease
from tests.rig import nvml

GPU = "GPU-11111111-aaaa-4bbb-8ccc-000000000001"


def test_an_option_comes_from_the_command_line_then_the_environment_then_the_file(tmp_path: Path) -> None:
    identity = Identity("https://p", "nd-1", "n", "lnt_secret", None, "node.nd-1")
    save(tmp_path, identity, {"ssh_port": 22001, "ssh_host": "file", "nofile": None})
    environ = {"LESSOR_AGENT_SSH_HOST": "environment", "LESSOR_AGENT_SIMULATE": "true"}
    options = load_options({"state_dir": tmp_path, "ssh_port": 22002, "ssh_host": None}, environ)
    assert (options.ssh_port, options.ssh_host, options.simulate) == (22002, "environment", True)
    assert load_options({"state_dir": tmp_path}, {}).ssh_port == 22001
    assert load_identity(tmp_path) == identity
    assert (tmp_path / "agent.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("environ", [{"LESSOR_AGENT_SSH_PORT": "ssh"}, {"LESSOR_AGENT_SIMULATE": "maybe"}])
def test_an_option_that_makes_no_sense_is_refused_by_name(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="must be"):
        load_options({"state_dir": tmp_path}, environ)


def test_a_machine_that_is_not_enrolled_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="not enrolled"):
        load_identity(tmp_path)


def test_a_state_directory_has_one_agent(tmp_path: Path) -> None:
    with take_lock(tmp_path), pytest.raises(AgentError, match=f"pid {os.getpid()}"):
        take_lock(tmp_path)
    take_lock(tmp_path).close()


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "http://localhost", "http://[::1]:1", "https://portal.example"]
)
def test_tokens_travel_over_https_or_loopback(url: str) -> None:
    check_url(url, allow_plain_http=False)


@pytest.mark.parametrize("url", ["http://portal.example", "http://10.0.0.1", "ftp://x", "portal.example"])
def test_plain_http_to_another_machine_is_refused(url: str) -> None:
    with pytest.raises(AgentError):
        check_url(url, allow_plain_http=False)


def test_the_gateway_s_host_key_is_the_same_after_another_enrolment(tmp_path: Path) -> None:
    (tmp_path / "gateway").mkdir()
    key = ensure_host_key(tmp_path / "gateway" / "ssh_host_ed25519_key")
    places = ["--state", str(tmp_path), "--run", str(tmp_path / "run"), "--gateway-group", "no-such-group"]
    told = []
    for _ in range(2):
        with FakePortal() as portal:
            assert main(["enrol", "--portal", portal.url, "--token", ENROLMENT_TOKEN, *places]) == 0
            told.append(portal.enrolments[0]["ssh_host_key"])

    assert told == [key, key]
    assert ensure_host_key(tmp_path / "gateway" / "ssh_host_ed25519_key") == key


def test_an_enrolment_token_works_once() -> None:
    with FakePortal() as portal:
        client = PortalClient(portal.url, "")
        assert client.enrol({"enrolment_token": ENROLMENT_TOKEN}, portal.url).node_token == TOKEN
        with pytest.raises(PortalRefusedError, match="enrolment_token_invalid"):
            client.enrol({"enrolment_token": ENROLMENT_TOKEN}, portal.url)
        assert not client.revoked


def test_an_answer_without_a_list_of_leases_is_no_answer() -> None:
    with FakePortal() as portal:
        client = PortalClient(portal.url, TOKEN)
        portal.answer = lambda *_: (200, {})  # type: ignore[method-assign]  # a portal gone wrong
        with pytest.raises(PortalUnavailableError):
            client.desired()


def test_errors_of_the_portal_client_do_not_show_the_token() -> None:
    client = PortalClient("http://127.0.0.1:1", "lnt_secret")
    with pytest.raises(PortalUnavailableError) as caught:
        client.desired()
    assert "lnt_secret" not in str(caught.value)


def test_the_silence_goes_on_over_a_restart_of_the_agent(tmp_path: Path) -> None:
    first = Contact(tmp_path / "contact.json", 100)
    first.store()
    silent_at = first.silent_at
    assert Contact(tmp_path / "contact.json", 100).silent_at == pytest.approx(silent_at, abs=0.01)
    (tmp_path / "contact.json").write_text(json.dumps({"boot_id": "another", "last": -1000}))
    assert Contact(tmp_path / "contact.json", 100).silent_at > now() + 90


def test_cdi_is_used_only_where_the_engine_lists_every_gpu(tmp_path: Path) -> None:
    from nodes.agent.engine import EngineFacts

    facts = EngineFacts("28", "overlay2", 2, ("runc",), frozenset({f"nvidia.com/gpu={GPU}"}), tmp_path)
    assert gpu_request(facts, (GPU,), simulated=False) == "cdi"
    assert gpu_request(facts, (GPU, "GPU-other"), simulated=False) == "device_request"
    assert gpu_request(None, (GPU,), simulated=False) == "device_request"
    assert gpu_request(facts, (GPU,), simulated=True) == "simulated"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("manifest for x:9 not found: manifest unknown", "no such tag"),
        ("pull access denied for x, repository does not exist", "does not exist"),
        ("Get https://registry: dial tcp: lookup registry: no such host", "could not be reached"),
        ("invalid reference format", "not a valid image name"),
    ],
)
def test_a_renter_reads_why_an_image_failed(said: str, words: str) -> None:
    assert words in str(image_error("x:9", said))


# Network --------------------------------------------------------------------------------------------------------------


def test_a_bridge_name_fits_an_interface_and_differs_by_lease() -> None:
    names = {bridge_name(f"lessor-ls-{'a' * 40}-{n}") for n in range(50)}
    assert len(names) == 50
    assert all(len(name) <= 15 for name in names)


def test_only_private_resolvers_get_an_exception_and_only_for_dns(tmp_path: Path) -> None:
    conf = tmp_path / "resolv.conf"
    conf.write_text("nameserver 10.0.0.2\nnameserver 127.0.0.53\nnameserver 9.9.9.9\nnameserver fd00::1\nsearch x\n")
    assert private_resolvers((conf, tmp_path / "missing")) == ("10.0.0.2",)
    rules = chains(("10.0.0.2",))["LESSOR-FORWARD"]
    assert [rule for rule in rules if "10.0.0.2" in rule] == [
        "-d 10.0.0.2 -p udp --dport 53 -j RETURN", "-d 10.0.0.2 -p tcp --dport 53 -j RETURN",
    ]  # fmt: skip
    assert all(f"-d {network} -j REJECT" in rules for network in BLOCKED)


# The proof ------------------------------------------------------------------------------------------------------------


@contextmanager
def control_socket(run: Path, answer: dict[str, object]) -> Iterator[None]:
    """The gateway's control socket with one answer for everything."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.rfile.readline()
            self.wfile.write(json.dumps(answer).encode() + b"\n")

    with socketserver.ThreadingUnixStreamServer(str(run / "gateway" / "control.sock"), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield
        server.shutdown()
        thread.join()


@contextmanager
def ssh_server(host_key: asyncssh.SSHKey, client_key: asyncssh.SSHKey, output: str) -> Iterator[int]:
    """An SSH server that lets one key in and prints one line for any command; yields its port."""
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    port: list[int] = []

    async def serve() -> None:
        keys = asyncssh.import_authorized_keys(client_key.export_public_key().decode())
        server = await asyncssh.listen(
            "127.0.0.1", 0, server_host_keys=[host_key], authorized_client_keys=keys, process_factory=answer
        )
        port.append(server.get_port())
        ready.set()
        await stop.wait()
        server.close()
        await server.wait_closed()

    def answer(process: "asyncssh.SSHServerProcess[str]") -> None:
        process.stdout.write(output)
        process.exit(0)

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    ready.wait(10)
    yield port[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)
    loop.close()


@pytest.fixture
def short_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PROOF_LIMIT_S", 0.5)


def prove(
    run: Path, said: list[str], answered: dict[str, object], *, output: str, server_key: asyncssh.SSHKey
) -> object:
    """Run the proof for a lease of one key and one GPU."""
    key = ProbeKey.make()
    wanted = parse_lease(lease("ls-a", [GPU], "img:1", authorized_keys=said))
    with control_socket(run, answered), ssh_server(server_key, key.private, output) as port:
        return SshProver(GatewayLink(run, "no-such-group"), port).prove(wanted, key, lambda _s: None)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    GatewayLink(tmp_path, "no-such-group")
    return tmp_path


RENTER = asyncssh.generate_private_key("ssh-ed25519")
RENTER_LINE = RENTER.export_public_key().decode().strip()
SERVER = asyncssh.generate_private_key("ssh-ed25519")
SERVER_LINE = SERVER.export_public_key().decode().strip()


def test_the_proof_holds_keys_login_and_devices(run_dir: Path) -> None:
    answer: dict[str, object] = {"keys": [RENTER.get_fingerprint()], "host_key": SERVER_LINE}
    output = json.dumps({"source": "nvml", "devices": [GPU], "driver": "570"})
    evidence = prove(run_dir, [RENTER_LINE], answer, output=output, server_key=SERVER)
    assert isinstance(evidence, dict)
    assert evidence["devices_seen"] == [GPU]
    assert evidence["keys_seen"] == [RENTER.get_fingerprint()]
    assert isinstance(evidence["ssh_ms"], int)


def test_other_devices_inside_than_leased_fail_as_a_gpu_fault(run_dir: Path) -> None:
    answer: dict[str, object] = {"keys": [], "host_key": SERVER_LINE}
    output = json.dumps({"source": "nvml", "devices": [GPU, "GPU-other"]})
    with pytest.raises(LaunchError) as caught:
        prove(run_dir, [], answer, output=output, server_key=SERVER)
    assert caught.value.failure == "failed_gpu"


@pytest.mark.usefixtures("short_proof")
def test_a_server_with_another_host_key_than_the_gateways_proves_nothing(run_dir: Path) -> None:
    stranger = asyncssh.generate_private_key("ssh-ed25519")
    answer: dict[str, object] = {"keys": [], "host_key": SERVER_LINE}
    with pytest.raises(LaunchError, match="HostKeyNotVerifiable"):
        prove(run_dir, [], answer, output="", server_key=stranger)


@pytest.mark.usefixtures("short_proof")
@pytest.mark.parametrize("keys", [[], [RENTER.get_fingerprint(), "SHA256:somebody-else"]])
def test_a_gateway_with_too_few_or_too_many_keys_proves_nothing(run_dir: Path, keys: list[str]) -> None:
    answer: dict[str, object] = {"keys": keys, "host_key": SERVER_LINE}
    with pytest.raises(LaunchError, match="does not have the lease's keys"):
        prove(run_dir, [RENTER_LINE], answer, output="", server_key=SERVER)


# GPUs -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nvml.FakeFleet:
    made = nvml.FakeFleet(tmp_path / "nvml.conf", nvml.make_gpus(2))
    monkeypatch.setenv("FAKE_NVML_CONF", str(made.path))
    return made


def library() -> str:
    return str(nvml.library_dir() / nvml.SONAME)


def test_gpus_are_read_by_nvml_in_the_portals_terms(fleet: nvml.FakeFleet) -> None:
    gpus = Gpus(library())
    first = gpus.inventory()[0]
    assert (first.uuid, first.memory_bytes, first.compute_capability) == (fleet.uuids[0], nvml.H100_MEMORY, "9.0")
    assert (gpus.driver_version(), gpus.cuda_version()) == ("570.86.15", "12.8")
    fleet.start_process(first.uuid, nvml.FakeProcess(pid=7, memory_bytes=1 << 20))
    assert (gpus.memory_used(first.uuid), gpus.processes(first.uuid)) == (1 << 20, frozenset({7}))


def test_a_lost_gpu_stays_in_the_inventory_as_not_healthy(fleet: nvml.FakeFleet) -> None:
    gpus = Gpus(library())
    assert all(gpu.healthy for gpu in gpus.inventory())
    fleet.lose(fleet.uuids[1])
    assert [(gpu.uuid, gpu.healthy) for gpu in gpus.inventory()] == [(fleet.uuids[0], True), (fleet.uuids[1], False)]
    with pytest.raises(GpuUnreadableError):
        gpus.memory_used(fleet.uuids[1])
    fleet.heal(fleet.uuids[1])
    assert all(gpu.healthy for gpu in gpus.inventory())


def test_a_driver_that_does_not_start_is_said_plainly(fleet: nvml.FakeFleet) -> None:
    fleet.fail_driver()
    with pytest.raises(AgentError, match="NVIDIA driver cannot be used"):
        Gpus(library())
