"""What NVIDIA's prestart hook does, on a machine without GPUs: it gives a container its GPUs, and nothing else.

runc calls it after the container's mounts are made and before the root is switched, with the container's state on
stdin. The requested GPUs are in NVIDIA_VISIBLE_DEVICES of the container's process; their device nodes (as clones of
/dev/null), the fake NVML library and its config are put into the container's mount namespace. Runs with the standard
library alone. The rig passes LESSOR_RIG_NVML_DIR, LESSOR_RIG_NVML_CONF and, to inject a failure, LESSOR_RIG_HOOK_FAIL
(a file whose text, when it exists, is the hook's error).
"""

import ctypes
import json
import os
import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CLONE_NEWNS = 0x00020000
MS_RDONLY, MS_REMOUNT, MS_BIND = 1, 32, 4096
NULL_DEVICE = os.makedev(1, 3)
LIBRARY = "libnvidia-ml.so.1"
LIBRARY_PLACE = "usr/lib/x86_64-linux-gnu"
NO_DEVICES = {"", "void", "none"}


class HookError(Exception):
    """The container cannot have what it asks for; the text is what the real command line tool prints."""


@dataclass
class Gpu:
    """What the hook needs to know of one GPU in the config."""

    uuid: str
    minor: int
    error: int = 0
    mig: dict[str, tuple[int, int]] = field(default_factory=dict)  # uuid -> (gpu instance, compute instance)


def read_fleet(text: str) -> list[Gpu]:
    """The GPUs of a fake NVML config; HookError where the driver itself is set to fail."""
    gpus: list[Gpu] = []
    for line in text.splitlines():
        key, _, value = line.strip().partition(" ")
        if key == "init_error" and value != "0":
            raise HookError("nvidia-container-cli: initialization error: nvml error: driver not loaded")
        if key == "gpu":
            gpus.append(Gpu(uuid=value, minor=len(gpus)))
        elif key == "minor":
            gpus[-1].minor = int(value)
        elif key == "error":
            gpus[-1].error = int(value)
        elif key == "mig":
            mig_uuid, gpu_instance, compute_instance, *_ = value.split()
            gpus[-1].mig[mig_uuid] = int(gpu_instance), int(compute_instance)
    return gpus


def device_nodes(wanted: str, gpus: list[Gpu]) -> list[str]:
    """The device nodes below /dev for a value of NVIDIA_VISIBLE_DEVICES: "all" or UUIDs or indices with commas."""
    nodes = ["nvidiactl", "nvidia-uvm"]
    for name in [gpu.uuid for gpu in gpus] if wanted == "all" else wanted.split(","):
        gpu = next((gpu for gpu in gpus if name in {gpu.uuid, str(gpu.minor), *gpu.mig}), None)
        if gpu is None:
            raise HookError(f"nvidia-container-cli: device error: {name}: unknown device")
        if gpu.error:
            raise HookError("nvidia-container-cli: detection error: nvml error: gpu is lost")
        nodes.append(f"nvidia{gpu.minor}")
        for gpu_instance, compute_instance in [gpu.mig[name]] if name in gpu.mig else gpu.mig.values():
            capability = 3 + gpu.minor * 135 + gpu_instance * 9
            nodes += [
                f"nvidia-caps/nvidia-cap{capability}",
                f"nvidia-caps/nvidia-cap{capability + 1 + compute_instance}",
            ]
    return nodes


def enter_mount_namespace(libc: ctypes.CDLL, pid: int) -> None:
    """Moves this process among the mounts of the container, whose root is not switched yet."""
    with Path(f"/proc/{pid}/ns/mnt").open("rb") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), "setns")


def bind_read_only(libc: ctypes.CDLL, source: Path, target: Path) -> None:
    """Shows the file `source` at `target` without copying it, as the real hook does with the driver's libraries."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.touch()
    for flags in (MS_BIND, MS_BIND | MS_REMOUNT | MS_RDONLY):
        if libc.mount(bytes(source), bytes(target), None, flags, None):
            raise OSError(ctypes.get_errno(), f"mount {target}")


def populate(root: Path, nodes: list[str], config: str, library: Path, libc: ctypes.CDLL) -> None:
    """Puts nodes, library and config into the container whose root filesystem is at `root`."""
    for node in nodes:
        path = root / "dev" / node
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            os.mknod(path, 0o666 | stat.S_IFCHR, NULL_DEVICE)
            path.chmod(0o666)
    bind_read_only(libc, library, root / LIBRARY_PLACE / LIBRARY)
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/fake-nvml.conf").write_text("require_device_nodes 1\n" + config)


def run(state: dict[str, Any]) -> None:
    """Serves one container, described by the state that runc passes on stdin."""
    fail = Path(os.environ["LESSOR_RIG_HOOK_FAIL"])
    if fail.exists():
        raise HookError(fail.read_text().strip())
    bundle = Path(state["bundle"])
    spec = json.loads((bundle / "config.json").read_text())
    variables = dict(entry.split("=", 1) for entry in spec["process"]["env"] if "=" in entry)
    wanted = variables.get("NVIDIA_VISIBLE_DEVICES", "")
    if wanted in NO_DEVICES:
        return
    config = Path(os.environ["LESSOR_RIG_NVML_CONF"]).read_text()
    nodes = device_nodes(wanted, read_fleet(config))
    libc = ctypes.CDLL(None, use_errno=True)
    enter_mount_namespace(libc, state["pid"])
    populate(bundle / spec["root"]["path"], nodes, config, Path(os.environ["LESSOR_RIG_NVML_DIR"]) / LIBRARY, libc)


def main() -> int:
    """Called with `prestart`; 0, or 1 with the reason on stderr."""
    try:
        run(json.load(sys.stdin))
    except (HookError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
