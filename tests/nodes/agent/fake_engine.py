"""An engine without containers: remembers what it was asked, and can be made to hang, refuse or lose things."""

import copy
import itertools
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nodes.agent.engine import ContainerFacts, EngineFacts, ImageFacts
from nodes.agent.engine_stream import Cut
from nodes.agent.failures import EngineError, EngineUnreachableError, ImageError

DEFAULTS: dict[str, Any] = {
    "UTSMode": "", "UsernsMode": "", "Cgroup": "", "Isolation": "", "OomScoreAdj": 0, "ConsoleSize": [0, 0],
    "MaskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
    "ReadonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
}  # fmt: skip


def inspect_of(body: Mapping[str, Any], name: str = "x") -> dict[str, Any]:
    """What an engine would answer to inspect for a container made from a create body."""
    body = copy.deepcopy(dict(body))
    host = {**DEFAULTS, **body["HostConfig"], "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0}}
    binds = [bind.rsplit(":", 2) for bind in host["Binds"]]
    return {
        "Id": "c" * 64,
        "Name": f"/{name}",
        "Config": {"Labels": body["Labels"], "Env": body["Env"], "Image": body["Image"]},
        "HostConfig": host,
        "Mounts": [{"Type": "bind", "Destination": target, "RW": mode == "rw"} for _, target, mode in binds],
        "NetworkSettings": {"Networks": {host["NetworkMode"]: {}}},
        "State": {"Status": "created", "Pid": 0, "ExitCode": 0, "OOMKilled": False},
        "LogPath": "",
    }


class FakeEngine:
    """`nodes.agent.engine.Engine` in memory."""

    def __init__(self) -> None:
        self.images = {"here:1"}
        self.pulls: list[str] = []
        self.pullable = {"far:1", "far:2", "far:3"}
        self.pull_gate = threading.Event()  # pulls wait for it
        self.speaks = False  # a pull says the same again and again
        self.pull_errors: list[EngineError] = []  # what the next pulls end with
        self.boxes: dict[str, dict[str, Any]] = {}
        self.nets: set[str] = set()
        self.calls: list[str] = []
        self.down = False
        self.hangs: set[str] = set()  # first words of calls that get no answer until `thaw`
        self.thaw = threading.Event()
        self.lost: dict[str, int] = {}  # how many calls of that name are carried out without an answer
        self.start_error = ""
        self.pid = 1  # of every container's first process
        self.output = ""  # of every container
        self.ignores_term = False
        self.exits_at_once: int | None = None
        self.tamper: Callable[[dict[str, Any]], None] = lambda _inspect: None
        self._exits: queue.Queue[dict[str, str]] = queue.Queue()
        self._ids = itertools.count(1)

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name.split(maxsplit=1)[0] in self.hangs:
            self.thaw.wait(60)
        if self.down:
            raise EngineUnreachableError("the container engine does not answer")

    def _answer(self, name: str) -> None:
        if self.lost.get(name):
            self.lost[name] -= 1
            raise EngineUnreachableError("the container engine does not answer: ReadTimeout")

    def facts(self) -> EngineFacts:
        self._call("facts")
        return EngineFacts("20.10", "overlay2", 2, ("runc",), frozenset(), Path("/"))

    def local_image(self, image: str) -> ImageFacts | None:
        self._call("local_image")
        return ImageFacts(f"sha256:{image}", "SIGTERM") if image in self.images else None

    def local_images(self) -> tuple[str, ...]:
        return tuple(self.images)

    def import_image(self, name: str, tag: str, archive: bytes) -> None:
        self._call(f"import_image {len(archive)}")
        self.images.add(f"{name}:{tag}")

    def pull(self, image: str, on_progress: Callable[[str], None], cancelled: Cut) -> None:
        self._call("pull")
        self.pulls.append(image)
        if self.pull_errors:
            raise self.pull_errors.pop(0)
        on_progress("1 of 2 layers")
        while not self.pull_gate.wait(0.01):
            if cancelled.is_set():
                return
            if self.speaks:
                on_progress("1 of 2 layers")
        if image not in self.pullable:
            raise ImageError(f"The image {image} does not exist, or is not public.")
        self.images.add(image)

    def network_create(self, name: str, bridge: str, labels: Mapping[str, str]) -> None:
        self._call("network_create")
        assert len(bridge) <= 15
        assert labels["lessor.lease"] in name
        self.nets.add(name)
        self._answer("network_create")

    def network_remove(self, name: str) -> None:
        self._call("network_remove")
        self.nets.discard(name)

    def networks(self, label: str) -> tuple[str, ...]:
        self._call(f"networks {label}")
        return tuple(self.nets)

    def create(self, name: str, body: Mapping[str, object]) -> str:
        self._call("create")
        if name in self.boxes:
            raise EngineError(f"Conflict. The container name {name} is already in use", status=409)
        box = inspect_of(body, name)
        box["Id"] = f"{next(self._ids):064x}"
        if box["HostConfig"]["NetworkMode"].startswith("container:"):
            box["NetworkSettings"]["Networks"] = {}
        self.tamper(box)
        self.boxes[name] = box
        self._answer("create")
        return str(box["Id"])

    def start(self, container: str) -> None:
        self._call("start")
        if self.start_error:
            raise EngineError(self.start_error, status=500)
        self._box(container)["State"] |= {"Status": "running", "Pid": self.pid}
        if self.exits_at_once is not None:
            self.exit(container, self.exits_at_once)
        self._answer("start")

    def kill(self, container: str, signal: str) -> None:
        self._call(f"kill {signal}")
        if signal == "SIGKILL" or not self.ignores_term:
            self.exit(container, 137 if signal == "SIGKILL" else 143)
        self._answer("kill")

    def exit(self, container: str, code: int) -> None:
        """The main process ends."""
        box = self._box(container)
        box["State"] |= {"Status": "exited", "Pid": 0, "ExitCode": code}
        self._exits.put(dict(box["Config"]["Labels"]))

    def remove(self, container: str) -> None:
        self._call("remove")
        self.boxes = {name: box for name, box in self.boxes.items() if container not in {name, box["Id"]}}

    def inspect(self, container: str) -> ContainerFacts | None:
        self._call("inspect")
        try:
            box = self._box(container)
        except KeyError:
            return None
        state = box["State"]
        return ContainerFacts(
            box["Id"], box["Name"].lstrip("/"), box["Config"]["Labels"], state["Status"], state["Pid"],
            state["ExitCode"], oom_killed=False, log_path="", inspect=box,
        )  # fmt: skip

    def containers(self, label: str) -> tuple[ContainerFacts, ...]:
        self._call(f"containers {label}")
        found = (self.inspect(name) for name in list(self.boxes))
        return tuple(facts for facts in found if facts)

    def has_path(self, container: str, path: str) -> bool:
        self._call(f"has_path {container} {path}")
        return True

    def put_archive(self, container: str, archive: bytes) -> None:
        self._call(f"put_archive {container} {len(archive)}")

    def wait(self, container: str, timeout_s: float) -> int:
        self._call(f"wait {container} {timeout_s}")
        return 0

    def logs(self, container: str) -> str:
        self._call(f"logs {container}")
        return self.output

    def exits(self, stop: threading.Event) -> Iterator[Mapping[str, str]]:
        while not stop.is_set():
            try:
                yield self._exits.get(timeout=0.05)
            except queue.Empty:
                continue

    def _box(self, container: str) -> dict[str, Any]:
        for name, box in self.boxes.items():
            if container in {name, box["Id"]}:
                return box
        raise KeyError(container)
