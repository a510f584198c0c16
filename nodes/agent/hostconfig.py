"""What a lease's container may be, as one pure function each way.

`build_body` makes the engine's create body from an allow-list: nothing the portal sends can add a key to it.
`check_hostconfig` reads the engine's inspect back and names every deviation from the same list, unknown keys included.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nodes.agent.desired import DEVICE_UUID, DesiredLease, container_name
from nodes.agent.holderbook import Holder
from nodes.agent.holderbox import ETC_FILES

GpuRequest = Literal["cdi", "device_request", "simulated"]

# CHOWN … NET_BIND_SERVICE are what a root shell, package managers and sshd-less logins need inside a container.
# Left out of the engine's default set: MKNOD, NET_RAW (spoofing on the bridge), SETFCAP, SETPCAP, AUDIT_WRITE,
# SYS_CHROOT.
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID")
GPU_CAPABILITIES = ("gpu", "compute", "utility")
BUNDLE_TARGET = "/.lease"
WORKSPACE_TARGET = "/workspace"
CDI_PREFIX = "nvidia.com/gpu="
RUNTIME = "runc"
# Runtimes with a kernel of their own (runsc, kata) set up their network themselves and cannot join another's.
JOINING_RUNTIMES = frozenset({"runc", "crun", "nvidia"})
ROLE = "workspace"
LOG = {"Type": "json-file", "Config": {"max-size": "10m", "max-file": "2"}}


@dataclass(frozen=True)
class NodeFacts:
    """What a create body depends on besides the lease."""

    node_id: str
    gpu_request: GpuRequest
    bundle_dir: Path
    nofile: int
    memlock: bool


def labels(node_id: str, lease_id: str, generation: int, role: str = ROLE) -> dict[str, str]:
    """The labels by which a later agent recognises what is ours."""
    return {
        "lessor.lease": lease_id,
        "lessor.generation": str(generation),
        "lessor.node": node_id,
        "lessor.role": role,
    }


def build_body(
    lease: DesiredLease, node: NodeFacts, workspace: Path, holder: Holder | None = None
) -> dict[str, object]:
    """The body of the engine's `POST /containers/create` for a lease; `workspace` is the mounted volume's directory.

    Without a holder the container is on the network of its own name.
    """
    # The engine takes no host name beside another container's network: the agent sets it once the container runs.
    named: dict[str, object] = {} if holder else {"Hostname": lease.id}
    network = f"container:{holder.container_id}" if holder else container_name(lease.id, lease.generation)
    etc = [f"{holder.files / name}:/etc/{name}:rw" for name in ETC_FILES] if holder else []
    return {
        "Image": lease.image,
        **named,
        "Labels": labels(node.node_id, lease.id, lease.generation),
        "Env": _environment(lease.devices, node.gpu_request),
        "HostConfig": {
            "NetworkMode": network,
            "Binds": [f"{node.bundle_dir}:{BUNDLE_TARGET}:ro", f"{workspace}:{WORKSPACE_TARGET}:rw", *etc],
            "DeviceRequests": _device_requests(lease.devices, node.gpu_request),
            "Memory": lease.memory_bytes,
            "MemorySwap": lease.memory_bytes,
            "ShmSize": lease.shm_bytes,
            "Ulimits": _ulimits(nofile=node.nofile, memlock=node.memlock),
            **limits(cpus_milli=lease.cpus_milli, pids=lease.pids),
        },
    }


def limits(*, cpus_milli: int, pids: int) -> dict[str, object]:
    """The part of HostConfig that is the same for every container this agent makes, but for its size."""
    return {
        "Runtime": RUNTIME,
        "Privileged": False,
        "CapDrop": ["ALL"],
        "CapAdd": list(CAPABILITIES),
        "SecurityOpt": ["no-new-privileges"],
        "PidMode": "",
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "Init": True,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": LOG,
        "NanoCpus": cpus_milli * 1_000_000,
        "PidsLimit": pids,
    }


def _environment(devices: tuple[str, ...], request: GpuRequest) -> list[str]:
    # Images bring their own NVIDIA_VISIBLE_DEVICES (CUDA images say "all"), and NVIDIA's runtime obeys it: it is always
    # set here, so that an image cannot choose its GPUs. With CDI the value must be "void", as CDI specs themselves set.
    visible = "void" if request == "cdi" else ",".join(devices)
    return [f"NVIDIA_VISIBLE_DEVICES={visible}", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"]


def _device_requests(devices: tuple[str, ...], request: GpuRequest) -> list[dict[str, object]]:
    if request == "cdi":
        return [{"Driver": "cdi", "DeviceIDs": [CDI_PREFIX + uuid for uuid in devices]}]
    if request == "device_request":
        return [{"Driver": "", "DeviceIDs": list(devices), "Capabilities": [list(GPU_CAPABILITIES)]}]
    return []


def _ulimits(*, nofile: int, memlock: bool) -> list[dict[str, object]]:
    found: list[dict[str, object]] = [
        {"Name": "nofile", "Soft": nofile, "Hard": nofile},
        {"Name": "core", "Soft": 0, "Hard": 0},
    ]
    if memlock:
        found.append({"Name": "memlock", "Soft": -1, "Hard": -1})
    return found


# Read back ------------------------------------------------------------------------------------------------------------

# Each key of HostConfig with the values it may have. What may vary by lease is judged below, by name.
_FIXED: dict[str, tuple[object, ...]] = {
    "Privileged": (False,),
    "CapDrop": (["ALL"],),
    "SecurityOpt": (["no-new-privileges"],),
    "PidMode": ("",),
    "IpcMode": ("private",),
    "UTSMode": ("",),
    "UsernsMode": ("",),
    "CgroupnsMode": ("private",),
    "Cgroup": ("",),
    "Runtime": (RUNTIME,),
    "Init": (True,),
    "RestartPolicy": ({"Name": "no", "MaximumRetryCount": 0},),
    "LogConfig": (LOG,),
    "Isolation": ("",),
    "OomScoreAdj": (0,),
}
_NEVER = (
    "Devices", "DeviceCgroupRules", "Sysctls", "VolumesFrom", "Links", "GroupAdd", "ExtraHosts", "PortBindings",
    "PublishAllPorts", "Tmpfs", "StorageOpt", "CgroupParent", "CpusetMems", "OomKillDisable", "Mounts", "AutoRemove",
    "KernelMemory", "VolumeDriver",
)  # fmt: skip
_JUDGED = (
    "CapAdd", "NetworkMode", "Binds", "DeviceRequests", "Memory", "MemorySwap", "ShmSize", "Ulimits", "NanoCpus",
    "PidsLimit", "MaskedPaths", "ReadonlyPaths",
)  # fmt: skip
# Settings that only take from the container, or that say how the engine talks to a terminal.
_HARMLESS = (
    "ConsoleSize", "ContainerIDFile", "ReadonlyRootfs", "Dns", "DnsOptions", "DnsSearch", "CpuShares", "CpuPeriod",
    "CpuQuota", "CpuRealtimePeriod", "CpuRealtimeRuntime", "CpusetCpus", "CpuCount", "CpuPercent", "BlkioWeight",
    "BlkioWeightDevice", "BlkioDeviceReadBps", "BlkioDeviceWriteBps", "BlkioDeviceReadIOps", "BlkioDeviceWriteIOps",
    "MemoryReservation",
    "MemorySwappiness", "KernelMemoryTCP", "IOMaximumIOps", "IOMaximumBandwidth", "Annotations",
)  # fmt: skip
_MUST_BE_MASKED = {"/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"}
_MUST_BE_READONLY = {"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
# Which holder it is stands in the create body, which is compared; that it is a holder's own namespace is seen at start.
_IN_HOLDER = re.compile(r"container:[0-9a-f]{64}")
_ANONYMOUS_VOLUME = re.compile(r"[0-9a-f]{64}")


def check_hostconfig(inspect: Mapping[str, Any], expected: Mapping[str, Any] | None = None) -> list[str]:
    """Every way in which a lease's container differs from what is allowed; empty when it is as it must be.

    Args:
        inspect: the engine's answer to `GET /containers/<id>/json`.
        expected: the create body, when at hand: then sizes, binds, devices and network must equal it too.
    """
    host: Mapping[str, Any] = inspect["HostConfig"]
    found = [f"{key} is {host.get(key)!r}" for key, allowed in _FIXED.items() if host.get(key) not in allowed]
    found += [f"{key} is {host[key]!r}" for key in _NEVER if host.get(key)]
    known = {*_FIXED, *_NEVER, *_JUDGED, *_HARMLESS}
    found += [f"unknown setting {key} is {value!r}" for key, value in host.items() if key not in known and value]
    found += _check_limits(host) + _check_paths(host) + _check_mounts(inspect) + _check_devices(inspect)
    lease = container_name(_label(inspect, "lessor.lease"), int(_label(inspect, "lessor.generation") or 0))
    mode, networks = host.get("NetworkMode"), set(inspect["NetworkSettings"].get("Networks") or {})
    joined = bool(_IN_HOLDER.fullmatch(mode or "")) and not networks
    if not joined and (mode != lease or networks != {lease}):
        found.append(f"the network is {mode!r}, not the lease's own")
    extra = set(host.get("CapAdd") or ()) - set(CAPABILITIES)
    if extra:
        found.append(f"CapAdd has {sorted(extra)}")
    return found + (_check_expected(inspect, expected) if expected else [])


def _label(inspect: Mapping[str, Any], name: str) -> str:
    return str((inspect["Config"].get("Labels") or {}).get(name, ""))


def _check_limits(host: Mapping[str, Any]) -> list[str]:
    found = [
        f"{key} has no limit" for key in ("Memory", "NanoCpus", "PidsLimit", "ShmSize") if (host.get(key) or 0) <= 0
    ]
    if host.get("MemorySwap") != host.get("Memory"):
        found.append("MemorySwap differs from Memory")
    names = {limit["Name"]: limit for limit in host.get("Ulimits") or ()}
    if not {"nofile", "core"} <= set(names) <= {"nofile", "core", "memlock"} or names["core"]["Hard"] != 0:
        found.append(f"Ulimits are {host.get('Ulimits')!r}")
    return found


def _check_paths(host: Mapping[str, Any]) -> list[str]:
    found = []
    if not set(host.get("MaskedPaths") or ()) >= _MUST_BE_MASKED:
        found.append("parts of /proc and /sys are not masked")
    if not set(host.get("ReadonlyPaths") or ()) >= _MUST_BE_READONLY:
        found.append("parts of /proc are not read-only")
    return found


def _check_mounts(inspect: Mapping[str, Any]) -> list[str]:
    found = []
    binds = {}
    for mount in inspect.get("Mounts") or ():
        if mount.get("Type") == "bind":
            binds[mount.get("Destination")] = bool(mount.get("RW"))
        elif mount.get("Type") != "volume" or not _ANONYMOUS_VOLUME.fullmatch(mount.get("Name", "")):
            # An image may declare VOLUMEs: the engine makes those anonymous and removes them with the container.
            found.append(f"mount {mount.get('Destination')} of type {mount.get('Type')}")
    in_holder = _IN_HOLDER.fullmatch(inspect["HostConfig"].get("NetworkMode") or "")
    etc = {f"/etc/{name}": True for name in ETC_FILES} if in_holder else {}
    if binds != {BUNDLE_TARGET: False, WORKSPACE_TARGET: True, **etc}:
        found.append(f"bind mounts are {binds!r}")
    return found


def _check_devices(inspect: Mapping[str, Any]) -> list[str]:
    requests = inspect["HostConfig"].get("DeviceRequests") or []
    found = [] if len(requests) <= 1 else ["more than one device request"]
    for request in requests:
        prefix = CDI_PREFIX if request.get("Driver") == "cdi" else ""
        ids = request.get("DeviceIDs") or []
        exact = ids and all(i.startswith(prefix) and DEVICE_UUID.fullmatch(i.removeprefix(prefix)) for i in ids)
        asked = {name for group in request.get("Capabilities") or () for name in group}
        if request.get("Driver") not in {"", "cdi"} or not exact or request.get("Count") or request.get("Options"):
            found.append(f"device request {request!r}")
        elif asked - set(GPU_CAPABILITIES):
            found.append(f"device request asks for {sorted(asked)}")
    visible = [e for e in inspect["Config"].get("Env") or () if e.startswith("NVIDIA_VISIBLE_DEVICES=")]
    if len(visible) != 1 or visible[0].endswith(("=all", "=")):
        found.append(f"NVIDIA_VISIBLE_DEVICES is set as {visible!r}")
    return found


def _check_expected(inspect: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    host, wanted = inspect["HostConfig"], expected["HostConfig"]
    keys = ("NetworkMode", "Binds", "Memory", "NanoCpus", "PidsLimit", "ShmSize")
    found = [f"{key} is {host.get(key)!r}, asked for {wanted[key]!r}" for key in keys if host.get(key) != wanted[key]]
    asked = [request["DeviceIDs"] for request in wanted["DeviceRequests"]]
    given = [request.get("DeviceIDs") for request in host.get("DeviceRequests") or ()]
    if asked != given:
        found.append(f"devices are {given!r}, asked for {asked!r}")
    if missing := [entry for entry in expected["Env"] if entry not in (inspect["Config"].get("Env") or ())]:
        found.append(f"environment lacks {missing!r}")
    return found
