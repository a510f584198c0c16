"""Docker engines of the test's own: containerd and dockerd in a network namespace, with GPUs that are not there.

One engine is one GPU node. Its containers, images, iptables and ports are its own, so several run side by side on one
machine, next to an engine that was there before. Needs root. `python -m tests.rig.engine` starts one in the foreground,
`python -m tests.rig.engine sweep` removes what a killed test run has left.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.rig import nvml
from tests.rig.leftovers import remove_leftovers
from tests.rig.network import RECORDS, EngineError, Network

HERE = Path(__file__).parent
START_SECONDS = 30.0
STOP_SECONDS = 20.0
DATA_SIZE = "4g"  # a cap, not a reservation


def wait_until(condition: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Returns as soon as `condition` holds; EngineError naming `what` when it does not within `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise EngineError(f"{what} took longer than {seconds:.0f} s")
        time.sleep(0.02)


def thread_state(task: Path) -> str:
    """The letter of proc(5) for a thread's state, given its directory: R, S, T for stopped, ..."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


class Engine:
    """One Docker engine with fake GPUs; a context manager that leaves nothing behind."""

    def __init__(
        self,
        gpus: Sequence[nvml.FakeGpu] | None = None,
        settings: Mapping[str, object] | None = None,
        *,
        gpu_hook: bool = True,
    ) -> None:
        """`settings` are dockerd's own, as in daemon.json; without `gpu_hook` it is one that cannot hand out GPUs."""
        self._settings = dict(settings or {})
        self._gpu_hook = gpu_hook
        self.root = Path(tempfile.mkdtemp(prefix="lessor-rig-"))
        self.fleet = nvml.FakeFleet(self.root / "fake-nvml.conf", nvml.make_gpus(4) if gpus is None else gpus)
        self._network: Network | None = None
        self._containerd: subprocess.Popen[bytes] | None = None
        self._dockerd: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def network(self) -> Network:
        """The node's network; EngineError before `start`."""
        if self._network is None:
            raise EngineError("the engine is not started")
        return self._network

    @property
    def name(self) -> str:
        """Unique on this machine."""
        return self.network.name

    @property
    def ip(self) -> str:
        """The node's address, for what its containers publish and for the gateway."""
        return self.network.ip

    @property
    def host_ip(self) -> str:
        """This machine's address as seen from the node: where the portal listens for the node's agent."""
        return self.network.host_ip

    @property
    def socket(self) -> Path:
        """The engine's Unix socket."""
        return self.root / "docker.sock"

    @property
    def docker_host(self) -> str:
        """The value for DOCKER_HOST."""
        return f"unix://{self.socket}"

    @property
    def pid(self) -> int:
        """Process id of dockerd; EngineError when it does not run."""
        if self._dockerd is None or self._dockerd.poll() is not None:
            raise EngineError("dockerd does not run")
        return self._dockerd.pid

    @property
    def nvml_environment(self) -> dict[str, str]:
        """What a program on the node (the agent) needs in its environment to see this node's GPUs by NVML."""
        return nvml.environment(self.fleet.path)

    def start(self) -> None:
        """Makes the network and starts containerd and dockerd; EngineError with the log where one does not come."""
        self._network = Network(self.root)
        # keeps the machine's own /etc/docker/daemon.json out
        (self.root / "daemon.json").write_text(json.dumps(self._settings))
        (self.root / "containerd.toml").write_text('version = 2\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n')
        self._mount_data()
        self._start_containerd()
        self.start_dockerd()

    def _mount_data(self) -> None:
        """Images and containers live in memory: on disk, removing them took longer than everything else together."""
        data = self.root / "data"
        data.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DATA_SIZE}", self.name, data], check=True)

    def _spawn(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        environment = {
            "PATH": f"{f'{HERE}:' if self._gpu_hook else ''}{os.environ['PATH']}:/usr/sbin:/sbin",
            "LESSOR_RIG_PYTHON": sys.executable,
            "LESSOR_RIG_NVML_DIR": str(nvml.library_dir()),
            "LESSOR_RIG_NVML_CONF": str(self.fleet.path),
            "LESSOR_RIG_HOOK_FAIL": str(self.root / "hook-fail"),
            "TMPDIR": str(self.root),
        }
        with (self.root / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                self.nsenter(*command), env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def _start_containerd(self) -> None:
        address = self.root / "containerd.sock"
        self._containerd = self._spawn(
            "containerd", "containerd", "--config", f"{self.root}/containerd.toml", "--address", str(address),
            "--root", f"{self.root}/containerd", "--state", f"{self.root}/containerd-run",
        )  # fmt: skip
        self._wait_for(address.exists, self._containerd, "containerd")

    def start_dockerd(self) -> None:
        """Starts dockerd (again, after `kill_dockerd`) and waits until it answers."""
        self._dockerd = self._spawn(
            "dockerd", "dockerd", "--config-file", f"{self.root}/daemon.json",
            "--containerd", f"{self.root}/containerd.sock", "--data-root", f"{self.root}/data",
            "--exec-root", f"{self.root}/exec", "--pidfile", f"{self.root}/dockerd.pid", "--host", self.docker_host,
            "--cgroup-parent", f"/{self.name}", "--exec-opt", "native.cgroupdriver=cgroupfs",
            "--shutdown-timeout", "5",
        )  # fmt: skip
        self._wait_for(self.answers, self._dockerd, "dockerd")

    def _wait_for(self, condition: Callable[[], bool], process: subprocess.Popen[bytes], name: str) -> None:
        try:
            wait_until(
                lambda: condition() or process.poll() is not None, seconds=START_SECONDS, what=f"start of {name}"
            )
        except EngineError as error:
            raise EngineError(f"{error}\n{self.log(name)}") from error
        if process.poll() is not None:
            raise EngineError(f"{name} ended with {process.returncode}\n{self.log(name)}")

    def log(self, name: str = "dockerd", *, lines: int = 20) -> str:
        """The end of the log of dockerd or containerd."""
        with contextlib.suppress(FileNotFoundError):
            return "\n".join((self.root / f"{name}.log").read_text(errors="replace").splitlines()[-lines:])
        return ""

    def answers(self) -> bool:
        """Whether the engine answers a ping within two seconds."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(2)
            connection.connect(str(self.socket))
            connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return connection.recv(64).split(b" ")[1:2] == [b"200"]
        return False

    def nsenter(self, *command: str) -> list[str]:
        """The command line that runs `command` in the node's network namespace."""
        # not `ip netns exec`: that mounts a new /sys, in which the cgroups are missing
        return ["nsenter", f"--net=/run/netns/{self.name}", "--", *command]

    def docker(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs the docker command line against this engine; EngineError with its words where it fails and `check`."""
        environment = os.environ | {"DOCKER_HOST": self.docker_host, "DOCKER_BUILDKIT": "0"}
        done = subprocess.run(["docker", *arguments], env=environment, check=False, capture_output=True, text=True)
        if check and done.returncode:
            raise EngineError(f"docker {' '.join(arguments)}: {done.stderr.strip()}")
        return done

    def load_image(self, archive: Path) -> None:
        """Loads an archive made by `docker save`."""
        self.docker("load", "--quiet", "--input", str(archive))

    def fail_gpu_hook(self, message: str | None) -> None:
        """From now on GPU containers do not start, with this message from the hook; None lets them start again."""
        fail = self.root / "hook-fail"
        if message is None:
            fail.unlink(missing_ok=True)
        else:
            fail.write_text(message)

    def pause(self) -> None:
        """Freezes dockerd: it neither answers nor refuses."""
        os.kill(self.pid, signal.SIGSTOP)
        threads = Path(f"/proc/{self.pid}/task")
        wait_until(
            lambda: all(thread_state(thread) == "T" for thread in threads.iterdir()),
            seconds=STOP_SECONDS,
            what="freezing dockerd",
        )

    def resume(self) -> None:
        """Ends `pause`."""
        os.kill(self.pid, signal.SIGCONT)

    def kill_dockerd(self) -> None:
        """Kills dockerd; its containers run on under containerd until `start_dockerd` finds them again."""
        self._end(self._dockerd, signal.SIGKILL)

    def restart_dockerd(self) -> None:
        """An orderly restart, which stops the containers."""
        self._end(self._dockerd, signal.SIGTERM)
        self.start_dockerd()

    @staticmethod
    def _end(process: subprocess.Popen[bytes] | None, how: signal.Signals) -> None:
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGCONT)  # a paused process does not see SIGTERM
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop(self) -> None:
        """Ends everything the engine has started and removes what it has made; may be called twice."""
        if self._network is not None:
            remove_leftovers(self.root, self._network.number, containers_only=True)
        self._end(self._dockerd, signal.SIGTERM)
        self._end(self._containerd, signal.SIGTERM)
        if self._network is not None:
            remove_leftovers(self.root, self._network.number)
            self._network = None
        shutil.rmtree(self.root, ignore_errors=True)


def sweep() -> int:
    """Removes engines whose test run is gone; returns how many."""
    swept = 0
    for record in sorted(RECORDS.glob("*.json")):
        left = json.loads(record.read_text())
        if Path(f"/proc/{left['owner']}").exists():
            continue
        remove_leftovers(Path(left["root"]), int(record.stem))
        shutil.rmtree(left["root"], ignore_errors=True)
        swept += 1
    return swept


def main() -> None:
    """One engine in the foreground, until interrupted; prints how to reach it."""
    if sys.argv[1:] == ["sweep"]:
        sys.stdout.write(f"{sweep()} engines removed\n")
        return
    with Engine() as engine:
        sys.stdout.write(f"export DOCKER_HOST={engine.docker_host}\n{engine.name} {engine.ip} pid {engine.pid}\n")
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
