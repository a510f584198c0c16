"""What the containers of network holders are: their image of one file, and their create bodies. Pure functions."""

import hashlib
import io
import tarfile
from collections.abc import Mapping

IMAGE, PROGRAM = "lessor/holder", "/holder"
ROLE, NEST_ROLE = "holder", "nest"
NEST_HOSTNAME = "lease"
MEMORY_BYTES = 32 << 20  # most of it for the runtime while it starts; the program needs a few pages
ETC_FILES = ("hostname", "hosts", "resolv.conf")  # a lease's own, in the order of its binds
LEAST_SHARES = 2  # of the processor, for containers that sleep


def image_tag(program: bytes) -> str:
    """The tag that stands for this very program, so that a new one makes a new image."""
    return hashlib.sha256(program).hexdigest()[:12]


def image_archive(program: bytes) -> bytes:
    """A tar of the image's whole file system."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo(PROGRAM.lstrip("/"))
        entry.size, entry.mode = len(program), 0o755
        archive.addfile(entry, io.BytesIO(program))
    return buffer.getvalue()


def nest_body(image: str, node_id: str) -> dict[str, object]:
    """The container whose empty network holders start from."""
    return {
        "Image": image,
        "Entrypoint": [PROGRAM, "nest"],
        "Hostname": NEST_HOSTNAME,
        "Labels": {"lessor.node": node_id, "lessor.role": NEST_ROLE},
        "HostConfig": {"NetworkMode": "none", **_limits()},
    }


def holder_body(image: str, node_id: str, nest: str) -> dict[str, object]:
    """A holder that starts in the network of the container `nest`."""
    return {
        "Image": image,
        "Entrypoint": [PROGRAM],
        "Labels": {"lessor.node": node_id, "lessor.role": ROLE},
        # SYS_ADMIN is what unshare(2) asks for; of the container only its network namespace is ever shared.
        "HostConfig": {"NetworkMode": f"container:{nest}", **_limits(), "CapAdd": ["SYS_ADMIN"]},
    }


def lease_files(hostname: str, address: str, resolvers: tuple[str, ...]) -> Mapping[str, str]:
    """Files of /etc that the engine would share between everything that comes from one nest; name → content."""
    return {
        "hostname": f"{hostname}\n",
        "hosts": f"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n{address}\t{hostname}\n",
        "resolv.conf": "".join(f"nameserver {server}\n" for server in resolvers),
    }


def _limits() -> dict[str, object]:
    return {
        "Runtime": "runc",
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": True,
        "IpcMode": "none",
        "CgroupnsMode": "private",
        "Init": False,
        "PidsLimit": 8,
        "Memory": MEMORY_BYTES,
        "MemorySwap": MEMORY_BYTES,
        "CpuShares": LEAST_SHARES,
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "none"},
    }
