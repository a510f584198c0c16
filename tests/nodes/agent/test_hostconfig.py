"""Case H07: whatever the portal says, a lease gets no privilege; and what the engine made is read back whole."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.agent.desired import DesiredInvalidError, container_name, parse_lease
from nodes.agent.hostconfig import GpuRequest, NodeFacts, build_body, check_hostconfig
from tests.nodes.agent.fake_engine import inspect_of
from tests.nodes.agent.fake_portal import lease

GPU = "GPU-11111111-aaaa-4bbb-8ccc-000000000001"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)
DANGEROUS = (
    "privileged", "Privileged", "cap_add", "CapAdd", "devices", "Devices", "binds", "Binds", "mounts", "Mounts",
    "pid_mode", "PidMode", "network_mode", "NetworkMode", "ipc_mode", "security_opt", "SecurityOpt", "sysctls",
    "runtime", "Runtime", "env", "Env", "command", "Cmd", "Entrypoint", "HostConfig", "user", "volumes", "labels",
    "gpus", "DeviceRequests",
)  # fmt: skip
HOSTILE = (
    "--privileged",
    "../../etc",
    "/var/run/docker.sock",
    "all",
    "host",
    "a:/b:rw",
    "x\n",
    "",
    " ",
    "\u202e",
    "-v/:/host",
)


def node(request: GpuRequest = "device_request") -> NodeFacts:
    return NodeFacts("nd-test", request, Path("/opt/bundle"), 1024, memlock=False)


def body(request: GpuRequest = "device_request", **changes: object) -> dict[str, Any]:
    wanted = parse_lease(lease("ls-a", [GPU], "img:1", **changes))
    return dict(build_body(wanted, node(request), Path("/state/volumes/lessor-ls-a-1")))


@given(extra=st.dictionaries(st.sampled_from(DANGEROUS) | st.text(max_size=16), JSON, max_size=6))
def test_keys_the_portal_adds_never_reach_the_engine(extra: dict[str, Any]) -> None:
    plain = lease("ls-a", [GPU], "img:1")
    made = build_body(parse_lease({**extra, **plain}), node(), Path("/w"))
    assert made == build_body(parse_lease(plain), node(), Path("/w"))


@given(
    field=st.sampled_from(sorted(lease("ls-a", [GPU], "img:1"))),
    value=JSON | st.sampled_from(HOSTILE) | st.lists(st.sampled_from(HOSTILE), max_size=2),
    request_by=st.sampled_from(["device_request", "cdi", "simulated"]),
)
def test_any_value_in_any_field_is_refused_or_makes_a_container_without_privileges(
    field: str, value: object, request_by: GpuRequest
) -> None:
    try:
        wanted = parse_lease({**lease("ls-a", [GPU], "img:1"), field: value})
    except DesiredInvalidError:
        return
    made = build_body(wanted, node(request_by), Path("/state/volumes") / container_name(wanted.id, wanted.generation))
    assert check_hostconfig(inspect_of(made), made) == []
    assert set(made) == {"Image", "Hostname", "Labels", "Env", "HostConfig"}


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("field", ["id", "image"])
def test_names_that_could_mean_something_else_are_refused(field: str, value: str) -> None:
    if (field, value) in {("image", "all"), ("image", "host")}:
        return  # odd, but nothing else than names of images
    with pytest.raises(DesiredInvalidError):
        parse_lease({**lease("ls-a", [GPU], "img:1"), field: value})


@pytest.mark.parametrize("devices", [[], ["all"], ["0"], [GPU, GPU], ["nvidia.com/gpu=all"], [f"{GPU},all"], GPU])
def test_devices_are_uuids_and_nothing_else(devices: object) -> None:
    with pytest.raises(DesiredInvalidError):
        parse_lease({**lease("ls-a", [GPU], "img:1"), "devices": devices})


def test_an_image_cannot_choose_its_gpus_by_its_environment() -> None:
    assert f"NVIDIA_VISIBLE_DEVICES={GPU}" in body()["Env"]
    assert f"NVIDIA_VISIBLE_DEVICES={GPU}" in body("simulated")["Env"]
    assert "NVIDIA_VISIBLE_DEVICES=void" in body("cdi")["Env"]


def test_gpus_are_asked_for_by_uuid_in_the_way_of_the_node() -> None:
    assert body()["HostConfig"]["DeviceRequests"] == [
        {"Driver": "", "DeviceIDs": [GPU], "Capabilities": [["gpu", "compute", "utility"]]}
    ]
    assert body("cdi")["HostConfig"]["DeviceRequests"] == [{"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={GPU}"]}]
    assert body("simulated")["HostConfig"]["DeviceRequests"] == []


Change = Callable[[dict[str, Any]], object]
DEVIATIONS: dict[str, Change] = {
    "privileged": lambda i: i["HostConfig"].update(Privileged=True),
    "a capability": lambda i: i["HostConfig"]["CapAdd"].append("SYS_ADMIN"),
    "no cap drop": lambda i: i["HostConfig"].update(CapDrop=[]),
    "a device": lambda i: i["HostConfig"].update(Devices=[{"PathOnHost": "/dev/sda"}]),
    "a cgroup device rule": lambda i: i["HostConfig"].update(DeviceCgroupRules=["a *:* rwm"]),
    "host pid": lambda i: i["HostConfig"].update(PidMode="host"),
    "host ipc": lambda i: i["HostConfig"].update(IpcMode="host"),
    "host uts": lambda i: i["HostConfig"].update(UTSMode="host"),
    "host user namespace": lambda i: i["HostConfig"].update(UsernsMode="host"),
    "host cgroup namespace": lambda i: i["HostConfig"].update(CgroupnsMode="host"),
    "host network": lambda i: i["HostConfig"].update(NetworkMode="host"),
    "a second network": lambda i: i["NetworkSettings"]["Networks"].update(bridge={}),
    "unconfined": lambda i: i["HostConfig"].update(SecurityOpt=["no-new-privileges", "seccomp=unconfined"]),
    "new privileges": lambda i: i["HostConfig"].update(SecurityOpt=None),
    "a sysctl": lambda i: i["HostConfig"].update(Sysctls={"net.ipv4.ip_forward": "1"}),
    "another runtime": lambda i: i["HostConfig"].update(Runtime="nvidia"),
    "the engine's socket": lambda i: i["Mounts"].append(
        {"Type": "bind", "Destination": "/var/run/docker.sock", "RW": True}
    ),
    "a writable bundle": lambda i: i["Mounts"][0].update(RW=True),
    "a named volume": lambda i: i["Mounts"].append({"Type": "volume", "Name": "other-tenant", "Destination": "/data"}),
    "a tmpfs": lambda i: i["HostConfig"].update(Tmpfs={"/x": ""}),
    "no memory limit": lambda i: i["HostConfig"].update(Memory=0, MemorySwap=0),
    "swap": lambda i: i["HostConfig"].update(MemorySwap=-1),
    "no pids limit": lambda i: i["HostConfig"].update(PidsLimit=None),
    "no cpu limit": lambda i: i["HostConfig"].update(NanoCpus=0),
    "core dumps": lambda i: i["HostConfig"]["Ulimits"][1].update(Hard=-1),
    "restarts": lambda i: i["HostConfig"].update(RestartPolicy={"Name": "always", "MaximumRetryCount": 0}),
    "an endless log": lambda i: i["HostConfig"].update(LogConfig={"Type": "json-file", "Config": {}}),
    "a published port": lambda i: i["HostConfig"].update(PortBindings={"22/tcp": [{}]}),
    "unmasked paths": lambda i: i["HostConfig"].update(MaskedPaths=[]),
    "writable /proc/sys": lambda i: i["HostConfig"].update(ReadonlyPaths=[]),
    "all gpus": lambda i: i["HostConfig"]["DeviceRequests"][0].update(Count=-1, DeviceIDs=None),
    "another gpu": lambda i: i["HostConfig"]["DeviceRequests"][0].update(DeviceIDs=[GPU.replace("1", "2")]),
    "a graphics capability": lambda i: i["HostConfig"]["DeviceRequests"][0].update(Capabilities=[["gpu", "graphics"]]),
    "all gpus by environment": lambda i: i["Config"].update(Env=["NVIDIA_VISIBLE_DEVICES=all"]),
    "a setting we do not know": lambda i: i["HostConfig"].update(GrantEverything=True),
    "a less careful score": lambda i: i["HostConfig"].update(OomScoreAdj=-1000),
}


@pytest.mark.parametrize("name", sorted(DEVIATIONS))
def test_every_deviation_is_found_in_what_the_engine_made(name: str) -> None:
    made = body()
    inspect = inspect_of(made)
    assert check_hostconfig(inspect, made) == []
    DEVIATIONS[name](inspect)
    assert check_hostconfig(inspect, made) != []
