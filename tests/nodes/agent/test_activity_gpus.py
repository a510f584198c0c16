"""What counts as load of a GPU, by what the driver keeps and says."""

import time
from pathlib import Path

import pytest

from nodes.agent.activity import Signal
from nodes.agent.activity_gpus import CardMeter, LeaseGpus
from nodes.agent.gpus import Gpus
from tests.rig import nvml
from tests.rig.nvml import FakeMig, FakeProcess, FakeSample

NOT_SUPPORTED = 3
PID = 4242


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> nvml.FakeFleet:
    made = nvml.FakeFleet(tmp_path / "nvml.conf", nvml.make_gpus(2))
    monkeypatch.setenv("FAKE_NVML_CONF", str(made.path))
    return made


@pytest.fixture
def gpus(fleet: nvml.FakeFleet) -> Gpus:
    return Gpus(str(nvml.library_dir() / nvml.SONAME))


def now_us() -> int:
    return time.time_ns() // 1000


def measure(fleet: nvml.FakeFleet, percent: int, *, pid: int = 0, at_us: int | None = None) -> None:
    """The driver notes a load of the first GPU."""
    first = fleet.gpus[0]
    sample = FakeSample(now_us() if at_us is None else at_us, percent, pid)
    fleet.change(first.uuid, samples=(*first.samples, sample))


def load(meter: CardMeter) -> Signal:
    return meter.read()["gpu_percent"]


def test_a_burst_between_two_looks_is_seen_once(fleet: nvml.FakeFleet, gpus: Gpus) -> None:  # case D01
    measure(fleet, 77, pid=PID)  # the lease before
    meter = CardMeter(gpus, fleet.uuids[0])
    assert load(meter) == 0
    measure(fleet, 90, pid=PID)  # its process has ended when the agent looks
    assert load(meter) == 90
    assert load(meter) == 0


def test_a_short_burst_counts_at_its_height_not_at_the_mean(fleet: nvml.FakeFleet, gpus: Gpus) -> None:
    meter = CardMeter(gpus, fleet.uuids[0])
    for percent in (60, *([0] * 19)):
        measure(fleet, percent, pid=PID)
        measure(fleet, percent)
    assert load(meter) == 60  # the mean is 3


def test_a_driver_without_samples_by_process_is_read_by_the_cards(fleet: nvml.FakeFleet, gpus: Gpus) -> None:
    fleet.change(fleet.uuids[0], extra={"process_load_error": NOT_SUPPORTED})
    meter = CardMeter(gpus, fleet.uuids[0])
    measure(fleet, 40)
    assert load(meter) == 40
    assert load(meter) == 0


def test_a_driver_that_keeps_no_samples_is_polled_in_between(fleet: nvml.FakeFleet, gpus: Gpus) -> None:
    fleet.change(fleet.uuids[0], extra={"process_load_error": NOT_SUPPORTED, "card_load_error": NOT_SUPPORTED})
    meter = CardMeter(gpus, fleet.uuids[0])
    fleet.change(fleet.uuids[0], util_percent=35)
    meter.poll()
    fleet.change(fleet.uuids[0], util_percent=0)
    assert load(meter) == 35
    assert load(meter) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"error": nvml.GPU_IS_LOST},
        {"extra": {"process_load_error": 999}},
        {"extra": {"process_load_error": NOT_SUPPORTED, "card_load_error": 3, "load_error": NOT_SUPPORTED}},
    ],
)
def test_a_load_that_cannot_be_read_is_unknown(
    fleet: nvml.FakeFleet, gpus: Gpus, changes: dict[str, object]
) -> None:  # case D01
    meter = LeaseGpus(gpus, fleet.uuids)
    assert meter.read() == {"gpu_percent": 0}
    fleet.change(fleet.uuids[1], **changes)
    assert meter.read() == {"gpu_percent": None}
    fleet.change(fleet.uuids[1], error=0, extra={})
    assert meter.read() == {"gpu_percent": 0}


def test_memory_that_is_held_and_nvidia_smi_are_no_load(fleet: nvml.FakeFleet, gpus: Gpus) -> None:  # case D02
    meter = CardMeter(gpus, fleet.uuids[0])
    measure(fleet, 30)  # the driver woke up for a question, and no process is on the card
    assert load(meter) == 0
    fleet.start_process(fleet.uuids[0], FakeProcess(PID, memory_bytes=70 << 30))
    assert load(meter) == 0


def test_loads_that_cannot_be_are_left_out(fleet: nvml.FakeFleet, gpus: Gpus) -> None:
    meter = CardMeter(gpus, fleet.uuids[0])
    measure(fleet, 4_000_000_000, pid=PID)
    assert load(meter) == 0


def test_a_clock_that_was_set_back_hides_no_load_and_repeats_none(
    fleet: nvml.FakeFleet, gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:  # case B07
    real = time.time_ns
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time_ns", lambda: real() + 3600 * 10**9)
        for pid in (PID, 0):
            measure(fleet, 80, pid=pid)
        meter = CardMeter(gpus, fleet.uuids[0])
    assert load(meter) == 0
    for pid in (PID, 0):
        measure(fleet, 50, pid=pid)
    assert load(meter) == 50
    assert load(meter) == 0


def test_a_mig_slice_tells_its_own_processes_and_memory_and_no_load(fleet: nvml.FakeFleet, gpus: Gpus) -> None:
    slices = tuple(
        FakeMig(f"MIG-11111111-aaaa-4bbb-8ccc-00000000000{n}", gpu_instance=n, used_mb=n) for n in range(1, 4)
    )
    fleet.change(
        fleet.uuids[0], mig_mode=True, mig=slices, processes=tuple(FakeProcess(n, mig=n % 3) for n in range(7))
    )
    meter = LeaseGpus(gpus, [slices[0].uuid, slices[1].uuid])
    assert meter.read() == {"mig_processes": 5, "mig_memory_bytes": 3 << 20}
    fleet.change(fleet.uuids[0], processes=())
    assert meter.read() == {"mig_processes": 0, "mig_memory_bytes": 3 << 20}
    fleet.change(fleet.uuids[0], processes=(FakeProcess(9, mig=0),))
    meter.poll()
    fleet.change(fleet.uuids[0], processes=())
    assert meter.read()["mig_processes"] == 1  # it came and went between two looks
    fleet.lose(fleet.uuids[0])
    assert meter.read() == {"mig_processes": None, "mig_memory_bytes": None}
