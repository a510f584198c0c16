"""Which errors take a GPU out, where the agent hears of them, and how a card comes back."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodes.agent import gpu_watch
from nodes.agent.gpu_faults import FaultBook
from nodes.agent.gpu_watch import GpuWatch
from nodes.agent.gpus import GpuFacts, Gpus
from nodes.agent.main import main
from nodes.agent.xids import Xid, fault_of, parse_kernel_line, same_gpu
from tests.nodes.agent.world import until
from tests.rig import nvml

LINE = "NVRM: Xid (PCI:0000:{bus}:00): {code}, pid='<unknown>', name=<unknown>, text"


class Watched:
    """Eight GPUs under watch; `start` again is a restart of the agent."""

    def __init__(self, directory: Path, fleet: nvml.FakeFleet) -> None:
        self.fleet = fleet
        self.everything = fleet.gpus  # as it was at first
        self.kmsg = directory / "kmsg"
        self.kmsg.write_text("")
        self.faults = FaultBook(directory / "state" / "gpu-faults")
        self.state = directory / "state"
        self.heard: list[str] = []
        self.number = 100

    def start(self) -> None:
        """As the agent does."""
        self.gpus = Gpus(str(nvml.library_dir() / nvml.SONAME), self.faults.why)
        self.watch = GpuWatch(
            self.gpus,
            self.faults,
            self.kmsg,
            on_silent=lambda: self.heard.append("silent"),
            on_back=lambda: self.heard.append("back"),
        )
        self.watch.start()

    def kernel(self, text: str) -> None:
        """The kernel logs a line."""
        self.number += 1
        with self.kmsg.open("a") as stream:
            stream.write(f"4,{self.number},{self.number * 1000},-;{text}\n SUBSYSTEM=pci\n")

    def out(self) -> dict[int, str]:
        """Index in the test's fleet and reason of every GPU that is out."""
        order = {gpu.uuid: place for place, gpu in enumerate(self.everything)}
        return {order[gpu.uuid]: gpu.fault for gpu in self.watch.inventory() if not gpu.healthy}


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(gpu_watch, "WAIT_S", 0.02)
    monkeypatch.setattr(gpu_watch, "LOOK_S", 0.02)
    fleet = nvml.FakeFleet(tmp_path / "nvml.conf", nvml.make_gpus(8))
    monkeypatch.setenv("FAKE_NVML_CONF", str(fleet.path))
    made = Watched(tmp_path, fleet)
    made.start()
    yield made
    made.watch.stop()


def after_two_looks(watched: Watched) -> None:
    """Until everything said so far was seen."""
    seen: list[tuple[GpuFacts, ...]] = [watched.watch.inventory()]

    def looked() -> bool:
        if watched.watch.inventory() is not seen[-1]:
            seen.append(watched.watch.inventory())
        return len(seen) > 2

    until(looked)


def test_an_event_of_a_hardware_error_takes_that_card_out_and_no_other(watched: Watched) -> None:  # case G04
    watched.fleet.xid(watched.fleet.uuids[3], 79)
    until(lambda: bool(watched.out()))
    assert list(watched.out()) == [3]
    assert "fallen off the bus" in watched.out()[3]


def test_an_event_of_an_application_error_takes_no_card_out(watched: Watched) -> None:
    for code in (13, 31, 43, 45, 63, 92):
        watched.fleet.xid(watched.fleet.uuids[2], code)
    watched.fleet.xid(watched.fleet.uuids[5], 48)  # told last
    until(lambda: bool(watched.out()))
    assert list(watched.out()) == [5]


def test_a_line_of_the_kernel_is_enough(watched: Watched) -> None:
    watched.kernel("usb 1-1: new device")
    watched.kernel(LINE.format(bus="1d", code=13))
    watched.kernel(LINE.format(bus="1e", code=119))
    until(lambda: bool(watched.out()))
    assert list(watched.out()) == [3]
    assert watched.out()[3].startswith("Xid 119")


def test_a_card_that_is_gone_leaves_the_others_their_uuids_though_their_indexes_shift(watched: Watched) -> None:
    watched.fleet.remove(watched.fleet.uuids[3])
    until(lambda: bool(watched.out()))
    assert watched.out() == {3: "the driver does not see this GPU any more"}
    seen = {gpu.uuid: gpu for gpu in watched.watch.inventory()}
    assert set(seen) == {gpu.uuid for gpu in watched.everything}
    assert [seen[gpu.uuid].healthy for gpu in watched.everything] == [True] * 3 + [False] + [True] * 4
    assert seen[watched.everything[7].uuid].pci_bus_id == watched.everything[7].bus_id


def test_a_card_that_does_not_answer_after_its_xid_shows_the_xid(watched: Watched) -> None:
    uuid = watched.fleet.uuids[3]
    watched.fleet.xid(uuid, 79)
    until(lambda: bool(watched.out()))
    watched.fleet.lose(uuid)
    after_two_looks(watched)
    assert watched.out()[3].startswith("Xid 79")


def test_a_card_stays_out_over_a_restart_of_the_agent_until_somebody_says_it_was_mended(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    uuid = watched.fleet.uuids[3]
    watched.kernel(LINE.format(bus="1e", code=95))
    until(lambda: bool(watched.out()))
    watched.watch.stop()
    watched.start()
    after_two_looks(watched)
    assert list(watched.out()) == [3]
    assert main(["gpu-mended", uuid, "--state", str(watched.state)]) == 0
    assert "leased again" in capsys.readouterr().out
    until(lambda: not watched.out())
    watched.watch.stop()
    watched.start()  # the line is still in the kernel's log, and was acted upon
    after_two_looks(watched)
    assert not watched.out()


def test_what_the_kernel_said_while_no_agent_ran_counts(watched: Watched) -> None:
    watched.watch.stop()
    watched.kernel(LINE.format(bus="1b", code=64))
    watched.start()
    until(lambda: list(watched.out()) == [0])


def test_only_a_gpu_can_be_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpu-mended", "../agent", "--state", str(tmp_path)]) == 1
    assert "UUID of a GPU" in capsys.readouterr().err


def test_a_machine_without_a_readable_kernel_log_is_watched_all_the_same(watched: Watched) -> None:
    watched.watch.stop()
    watched.kmsg.unlink()
    watched.start()
    watched.fleet.xid(watched.fleet.uuids[1], 74)
    until(lambda: list(watched.out()) == [1])


def hanging(gate: threading.Event) -> Callable[[], tuple[GpuFacts, ...]]:
    def inventory() -> tuple[GpuFacts, ...]:
        gate.wait(60)
        return ()

    return inventory


def test_a_driver_that_hangs_is_told_once_and_keeps_nobody_waiting(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    monkeypatch.setattr(watched.gpus, "inventory", hanging(gate))
    monkeypatch.setattr(gpu_watch, "SILENT_S", 0.1)
    until(lambda: bool(watched.watch.inventory()) and bool(watched.heard))
    for _ in range(3):
        assert all(gpu.healthy for gpu in watched.watch.inventory())  # no lease ends for this
    assert watched.heard == ["silent"]
    monkeypatch.undo()
    monkeypatch.setenv("FAKE_NVML_CONF", str(watched.fleet.path))
    gate.set()
    until(lambda: watched.heard == ["silent", "back"])


@pytest.mark.parametrize("code", [48, 64, 74, 79, 94, 95, 119, 120])
def test_hardware_errors_are_named_with_what_to_do(code: int) -> None:
    why = fault_of(Xid(code))
    assert why.startswith(f"Xid {code}: ")
    assert "; " in why


@pytest.mark.parametrize("code", [8, 11, 13, 25, 31, 32, 43, 45, 63, 68, 69, 80, 92, 109, 137, 154, 99999])
def test_errors_that_need_no_reset_take_nothing_out(code: int) -> None:
    assert fault_of(Xid(code)) == ""


def test_a_link_error_of_nvlink_5_counts_when_its_line_says_fatal() -> None:
    line = "NVRM: Xid (PCI:0018:01:00): 145, RLW_SRC_TRACK {} XC0 i0 Link 11 (0x4 0x0)"
    lost, kept = parse_kernel_line(line.format("Fatal")), parse_kernel_line(line.format("Nonfatal"))
    assert lost
    assert kept
    assert (bool(fault_of(lost)), bool(fault_of(kept)), bool(fault_of(Xid(145)))) == (True, False, False)


def test_kernel_lines_are_read_as_drivers_write_them() -> None:
    assert parse_kernel_line("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.") == Xid(
        79, "0000:1b:00", "GPU has fallen off the bus."
    )
    assert parse_kernel_line("NVRM: Xid (PCI:0000:1b:00 GPU-I:05): 94, pid=1") == Xid(94, "0000:1b:00", "pid=1")
    assert parse_kernel_line("NVRM: loading NVIDIA UNIX x86_64 Kernel Module") is None
    assert same_gpu("0000:1b:00", "00000000:1B:00.0")
    assert not same_gpu("0000:1b:00", "00000000:1C:00.0")
    assert not same_gpu("0001:1b:00", "00000000:1B:00.0")


def test_a_fault_is_kept_by_uuid_only(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="UUID"):
        FaultBook(tmp_path).note("../x", "why")
