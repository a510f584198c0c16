"""What the stand-in for NVIDIA's hook gives a container, decided without one."""

import pytest

from tests.rig import nvml, runtime_hook

GPUS = [
    nvml.FakeGpu(uuid="GPU-a", index=0),
    nvml.FakeGpu(uuid="GPU-b", index=1),
    nvml.FakeGpu(uuid="GPU-c", index=2, mig_mode=True, mig=(nvml.FakeMig(uuid="MIG-x", gpu_instance=1),)),
]


def nodes(wanted: str, gpus: list[nvml.FakeGpu] = GPUS) -> list[str]:
    return runtime_hook.device_nodes(wanted, runtime_hook.read_fleet(nvml.render_config(gpus)))


def test_only_the_requested_gpus_are_given() -> None:
    assert nodes("GPU-b") == ["nvidiactl", "nvidia-uvm", "nvidia1"]


def test_a_mig_device_comes_with_its_parent_and_its_two_capabilities() -> None:
    assert nodes("MIG-x") == [
        "nvidiactl",
        "nvidia-uvm",
        "nvidia2",
        "nvidia-caps/nvidia-cap282",
        "nvidia-caps/nvidia-cap283",
    ]


def test_all_means_every_gpu() -> None:
    assert {"nvidia0", "nvidia1", "nvidia2"} <= set(nodes("all"))


def test_an_unknown_uuid_is_refused_by_name() -> None:
    with pytest.raises(runtime_hook.HookError, match=r"^nvidia-container-cli: device error: GPU-z: unknown device$"):
        nodes("GPU-a,GPU-z")


def test_a_lost_gpu_is_refused() -> None:
    with pytest.raises(runtime_hook.HookError, match="gpu is lost"):
        nodes("GPU-a", [nvml.FakeGpu(uuid="GPU-a", error=nvml.GPU_IS_LOST)])


def test_without_a_driver_nothing_is_given() -> None:
    config = nvml.render_config(GPUS, init_error=9)
    with pytest.raises(runtime_hook.HookError, match="driver not loaded"):
        runtime_hook.read_fleet(config)
