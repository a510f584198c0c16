"""The fake NVML as unmodified nvidia-ml-py sees it: in a process started for it, as the agent is."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rig import nvml

ASK = """
import json, pynvml
pynvml.nvmlInit()
seen = []
for index in range(pynvml.nvmlDeviceGetCount()):
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
        seen.append({
            "uuid": pynvml.nvmlDeviceGetUUID(device), "name": pynvml.nvmlDeviceGetName(device),
            "total": memory.total, "used": memory.used, "pci": pynvml.nvmlDeviceGetPciInfo(device).busId,
            "pids": [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device)],
            "mig": pynvml.nvmlDeviceGetMigMode(device)[0],
        })
    except pynvml.NVMLError as error:
        seen.append({"error": str(error)})
print(json.dumps({"driver": pynvml.nvmlSystemGetDriverVersion(), "gpus": seen}))
"""


def ask(config: Path, program: str = ASK) -> Any:
    """What `program` prints, run with the fake library; its stderr is part of the failure where it fails."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env=os.environ | nvml.environment(config),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


@pytest.fixture
def fleet(tmp_path: Path) -> nvml.FakeFleet:
    return nvml.FakeFleet(tmp_path / "fake-nvml.conf", nvml.make_gpus(2))


def test_the_bindings_read_every_gpu_of_the_config(fleet: nvml.FakeFleet) -> None:
    seen = ask(fleet.path)
    assert seen["driver"] == "570.86.15"
    assert [gpu["uuid"] for gpu in seen["gpus"]] == fleet.uuids
    assert seen["gpus"][0] == {
        "uuid": fleet.uuids[0],
        "name": "NVIDIA H100 80GB HBM3",
        "total": 85_520_809_984,
        "used": 0,
        "pci": "00000000:1B:00.0",
        "pids": [],
        "mig": 0,
    }


def test_a_lost_gpu_fails_alone_and_heals(fleet: nvml.FakeFleet) -> None:
    lost, well = fleet.uuids
    fleet.lose(lost)
    seen = ask(fleet.path)["gpus"]
    assert seen[0] == {"error": "GPU is lost"}
    assert seen[1]["uuid"] == well
    fleet.heal(lost)
    assert [gpu["uuid"] for gpu in ask(fleet.path)["gpus"]] == [lost, well]


def test_a_process_holds_memory_until_it_ends(fleet: nvml.FakeFleet) -> None:
    gpu = fleet.uuids[1]
    fleet.start_process(gpu, nvml.FakeProcess(pid=4242, memory_bytes=1 << 30))
    seen = ask(fleet.path)["gpus"][1]
    assert (seen["pids"], seen["used"]) == ([4242], 1 << 30)
    fleet.end_process(gpu, 4242)
    seen = ask(fleet.path)["gpus"][1]
    assert (seen["pids"], seen["used"]) == ([], 0)


def test_an_edit_shows_in_a_program_that_runs_and_a_removed_gpu_is_lost_to_its_handle(fleet: nvml.FakeFleet) -> None:
    program = f"""
import json, pynvml
from pathlib import Path
pynvml.nvmlInit()
first = pynvml.nvmlDeviceGetHandleByIndex(0)
second = pynvml.nvmlDeviceGetHandleByIndex(1)
config = Path({str(fleet.path)!r})
text = config.read_text()
globals_, first_gpu, second_gpu = text.split("\\ngpu ")
config.write_text(globals_ + "\\ngpu " + second_gpu)
try:
    pynvml.nvmlDeviceGetUUID(first)
    answer = "found"
except pynvml.NVMLError as error:
    answer = str(error)
print(json.dumps([answer, pynvml.nvmlDeviceGetUUID(second), pynvml.nvmlDeviceGetCount()]))
"""
    assert ask(fleet.path, program) == ["GPU is lost", fleet.uuids[1], 1]


def test_with_device_nodes_required_nothing_is_seen_on_a_machine_without_them(fleet: nvml.FakeFleet) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has NVIDIA device nodes")
    fleet.path.write_text("require_device_nodes 1\n" + fleet.path.read_text())
    assert ask(fleet.path)["gpus"] == []


def test_a_driver_that_is_not_loaded_fails_at_init(fleet: nvml.FakeFleet) -> None:
    fleet.fail_driver()
    program = """
import json, pynvml
try:
    pynvml.nvmlInit()
except pynvml.NVMLError as error:
    print(json.dumps(str(error)))
"""
    assert ask(fleet.path, program) == "Driver Not Loaded"


def test_mig_devices_are_found_by_their_parent_and_by_uuid(tmp_path: Path) -> None:
    slices = (
        nvml.FakeMig(uuid="MIG-a", gpu_instance=7),
        nvml.FakeMig(uuid="MIG-b", gpu_instance=8, profile="2g.20gb", slices=2, memory_mb=20096),
    )
    gpu = nvml.FakeGpu(uuid="GPU-a", mig_mode=True, mig=slices)
    fleet = nvml.FakeFleet(tmp_path / "conf", [gpu])
    program = """
import json, pynvml
pynvml.nvmlInit()
parent = pynvml.nvmlDeviceGetHandleByIndex(0)
found = []
for place in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(parent)):
    try:
        mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, place)
    except pynvml.NVMLError_NotFound:
        continue
    found.append([pynvml.nvmlDeviceGetUUID(mig), pynvml.nvmlDeviceGetMemoryInfo(mig).total >> 20])
try:
    pynvml.nvmlDeviceGetUtilizationRates(parent)
except pynvml.NVMLError_NotSupported:
    found.append("no load with MIG on")
print(json.dumps(found))
"""
    assert ask(fleet.path, program) == [["MIG-a", 9856], ["MIG-b", 20096], "no load with MIG on"]
