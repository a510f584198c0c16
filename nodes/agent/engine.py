"""The container engine behind a small protocol. The only module that imports docker.

The name is the idempotency key, and removing what is unknown is a success. Every call has a time
limit, so an engine that hangs costs an actor a wait and never its life.
"""

import ipaddress
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Protocol

import docker
import requests
from docker.errors import APIError, DockerException
from docker.transport import UnixHTTPAdapter

from nodes.agent.engine_stream import Cut, QuietError, lines
from nodes.agent.failures import EngineError, EngineUnreachableError, ImageError, image_error
from nodes.agent.pull_progress import PullProgress
from nodes.agent.registry import ask_retry_after, manifest_of, retry_after_in, split_reference

QUICK_S = 10  # reading and signalling: what does not answer within it is asked again
SLOW_S = 180  # creating, starting and removing: GPU hooks may have to wake the driver
QUIET_PULL_S = 180.0  # a pull that says nothing for so long is given up
QUIET_EVENTS_S = 60  # then the event stream is opened anew, in case the engine went away without a word


@dataclass(frozen=True)
class EngineFacts:
    """What the engine is; `cdi_devices` are qualified names such as nvidia.com/gpu=GPU-…"""

    version: str
    storage_driver: str
    cgroup_version: int
    runtimes: tuple[str, ...]
    cdi_devices: frozenset[str]
    root_dir: Path


@dataclass(frozen=True)
class ImageFacts:
    """A local image: its id, and the signal that asks its main process to end."""

    id: str
    stop_signal: str


@dataclass(frozen=True)
class ContainerFacts:
    """A container as the engine knows it now. `pid` is 0 unless running; `inspect` is the engine's whole answer."""

    id: str
    name: str
    labels: Mapping[str, str]
    status: str
    pid: int
    exit_code: int
    oom_killed: bool
    log_path: str
    inspect: Mapping[str, Any] = field(repr=False)

    @property
    def running(self) -> bool:
        """Whether its main process exists (a paused one does)."""
        return self.status in {"running", "paused", "restarting"}


class Engine(Protocol):
    """What the agent needs of a container engine. Every method may raise EngineError or EngineUnreachableError."""

    def facts(self) -> EngineFacts:
        """Version and abilities of the engine."""

    def local_image(self, image: str) -> ImageFacts | None:
        """The image, when the engine has it already."""

    def local_images(self) -> tuple[str, ...]:
        """Ids of all images the engine has, newest first."""

    def import_image(self, name: str, tag: str, archive: bytes) -> None:
        """Make an image whose whole file system is a tar."""

    def pull(self, image: str, on_progress: Callable[[str], None], cancelled: Cut) -> None:
        """Fetch an image, telling "pulling 1.2 of 3.4 GB"; raises ImageError with a sentence for the renter.

        However long it takes, as long as something comes. Returns at once when `cancelled`.
        """

    def network_create(self, name: str, bridge: str, labels: Mapping[str, str]) -> None:
        """A bridge network of its own whose members cannot reach each other."""

    def network_remove(self, name: str) -> None:
        """Remove a network."""

    def networks(self, label: str) -> tuple[str, ...]:
        """Names of the networks that carry a label ("key=value")."""

    def create(self, name: str, body: Mapping[str, object]) -> str:
        """Create a container from a raw create body; returns its id. An existing one of that name is an error."""

    def start(self, container: str) -> None:
        """Start it; a running one is left alone."""

    def kill(self, container: str, signal: str) -> None:
        """Send a signal to the main process; one that has ended already is a success."""

    def remove(self, container: str) -> None:
        """Remove it with its anonymous volumes, running or not."""

    def inspect(self, container: str) -> ContainerFacts | None:
        """The container by name or id, or None."""

    def containers(self, label: str) -> tuple[ContainerFacts, ...]:
        """All containers, running or not, that carry a label ("key=value")."""

    def has_path(self, container: str, path: str) -> bool:
        """Whether a path exists in the container's file system."""

    def put_archive(self, container: str, archive: bytes) -> None:
        """Unpack a tar at the root of a container that has not started."""

    def wait(self, container: str, timeout_s: float) -> int:
        """Wait for the end of a container; returns its exit code."""

    def logs(self, container: str) -> str:
        """Standard output of a short-lived container."""

    def exits(self, stop: threading.Event) -> Iterator[Mapping[str, str]]:
        """Labels of containers as they end, until `stop` or until the stream breaks."""


class DockerEngine:
    """`Engine` on a Docker daemon's Unix socket."""

    def __init__(self, socket: Path, *, quiet_pull_s: float = QUIET_PULL_S) -> None:
        self._socket = socket
        self._url = f"unix://{socket}"
        self._quiet_pull_s = quiet_pull_s
        self._lock = threading.Lock()
        self._clients: dict[int, Any] = {}

    def facts(self) -> EngineFacts:
        """See Engine."""
        with _errors():
            info = self._client(QUICK_S).info()
        discovered = info.get("DiscoveredDevices") or []
        return EngineFacts(
            version=str(info.get("ServerVersion", "")),
            storage_driver=str(info.get("Driver", "")),
            cgroup_version=int(info.get("CgroupVersion") or 1),
            runtimes=tuple(sorted(info.get("Runtimes") or {})),
            cdi_devices=frozenset(str(d.get("ID")) for d in discovered if d.get("Source") == "cdi"),
            root_dir=Path(str(info.get("DockerRootDir") or "/var/lib/docker")),
        )

    def local_image(self, image: str) -> ImageFacts | None:
        """See Engine."""
        raw = self._found(lambda: self._client(QUICK_S).inspect_image(image))
        return raw and ImageFacts(raw["Id"], (raw.get("Config") or {}).get("StopSignal") or "SIGTERM")

    def local_images(self) -> tuple[str, ...]:
        """See Engine."""
        with _errors():
            images = self._client(QUICK_S).images()
        return tuple(image["Id"] for image in images)

    def import_image(self, name: str, tag: str, archive: bytes) -> None:
        """See Engine."""
        with _errors():
            self._client(SLOW_S).import_image_from_data(archive, repository=name, tag=tag)

    def pull(self, image: str, on_progress: Callable[[str], None], cancelled: Cut) -> None:
        """See Engine."""
        # Not client.pull(): that one has no time limit between two lines.
        name, tag = split_reference(image)
        progress = PullProgress()
        try:
            with self._stream(
                "POST", "/images/create", {"fromImage": name, "tag": tag}, self._quiet_pull_s, cancelled
            ) as answer:
                for line in answer:
                    if problem := line.get("error"):
                        raise self._pull_error(image, str(problem))
                    on_progress(progress.take(line))
        except QuietError as error:
            self.facts()  # raises where it is the engine that hangs, and not the registry
            raise ImageError(f"The registry of {image} has stopped answering.", again="later") from error
        except (EngineUnreachableError, ImageError):
            raise
        except EngineError as error:
            raise self._pull_error(image, str(error)) from error

    def network_create(self, name: str, bridge: str, labels: Mapping[str, str]) -> None:
        """See Engine."""
        options = {"com.docker.network.bridge.name": bridge, "com.docker.network.bridge.enable_icc": "false"}
        try:
            with _errors():
                self._client(SLOW_S).create_network(
                    name, driver="bridge", options=options, labels=dict(labels), enable_ipv6=False, check_duplicate=True
                )
        except EngineError as error:
            if error.status != HTTPStatus.CONFLICT:
                raise

    def network_remove(self, name: str) -> None:
        """See Engine."""
        self._found(lambda: self._client(SLOW_S).remove_network(name))

    def networks(self, label: str) -> tuple[str, ...]:
        """See Engine."""
        with _errors():
            return tuple(n["Name"] for n in self._client(QUICK_S).networks(filters={"label": label}))

    def create(self, name: str, body: Mapping[str, object]) -> str:
        """See Engine."""
        with _errors():
            answer = self._client(SLOW_S).create_container_from_config(dict(body), name)
        return str(answer["Id"])

    def start(self, container: str) -> None:
        """See Engine."""
        with _errors():
            self._client(SLOW_S).start(container)

    def kill(self, container: str, signal: str) -> None:
        """See Engine."""
        try:
            self._found(lambda: self._client(QUICK_S).kill(container, signal))
        except EngineError as error:
            if error.status != HTTPStatus.CONFLICT:  # "is not running"
                raise

    def remove(self, container: str) -> None:
        """See Engine."""
        try:
            self._found(lambda: self._client(SLOW_S).remove_container(container, v=True, force=True))
        except EngineError as error:
            if error.status != HTTPStatus.CONFLICT:  # "removal … is already in progress"
                raise

    def inspect(self, container: str) -> ContainerFacts | None:
        """See Engine."""
        raw = self._found(lambda: self._client(QUICK_S).inspect_container(container))
        return raw and _container(raw)

    def containers(self, label: str) -> tuple[ContainerFacts, ...]:
        """See Engine."""
        with _errors():
            listed = self._client(QUICK_S).containers(all=True, filters={"label": label})
        found = (self.inspect(entry["Id"]) for entry in listed)
        return tuple(facts for facts in found if facts)

    def has_path(self, container: str, path: str) -> bool:
        """See Engine."""
        client = self._client(QUICK_S)
        with _errors():
            answer = client.head(
                _url(client, f"/containers/{container}/archive"), params={"path": path}, timeout=QUICK_S
            )
        return bool(answer.status_code == HTTPStatus.OK)

    def put_archive(self, container: str, archive: bytes) -> None:
        """See Engine."""
        with _errors():
            self._client(SLOW_S).put_archive(container, "/", archive)

    def wait(self, container: str, timeout_s: float) -> int:
        """See Engine."""
        with _errors():
            return int(self._client(QUICK_S).wait(container, timeout=int(timeout_s))["StatusCode"])

    def logs(self, container: str) -> str:
        """See Engine."""
        with _errors():
            output: bytes = self._client(QUICK_S).logs(container, stdout=True, stderr=False, tail=100)
        return output.decode(errors="replace")

    def exits(self, stop: threading.Event) -> Iterator[Mapping[str, str]]:
        """See Engine."""
        filters = json.dumps({"type": ["container"], "event": ["die"], "label": ["lessor.lease"]})
        with self._stream("GET", "/events", {"filters": filters}, QUIET_EVENTS_S) as answer:
            for line in answer:
                if stop.is_set():
                    return
                yield (line.get("Actor") or {}).get("Attributes") or {}

    def _client(self, timeout_s: int) -> Any:  # docker.APIClient, whose published types are incomplete
        # Made on first use: the version is asked of the engine, which may not be up yet when the agent starts. Not
        # under the lock: an engine that hangs would let its callers in one after the other only.
        with self._lock:
            if client := self._clients.get(timeout_s):
                return client
        with _errors():
            client = docker.APIClient(self._url, version="auto", timeout=timeout_s)
        client.trust_env = False  # no proxy leads to a socket of this machine
        client.mount("http+docker://", _OneSocket(f"http+{self._url}", timeout_s, max_pool_size=32))
        with self._lock:
            return self._clients.setdefault(timeout_s, client)

    def _found(self, call: Callable[[], Any]) -> Any:  # the engine's JSON
        try:
            with _errors():
                return call()
        except EngineError as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise

    @contextmanager
    def _stream(
        self, method: str, path: str, params: Mapping[str, str], quiet_s: float, cut: Cut | None = None
    ) -> Iterator[Iterator[dict[str, Any]]]:
        version = self._client(QUICK_S).api_version
        with lines(self._socket, method, f"/v{version}{path}", params, quiet_s, cut) as answer:
            yield answer

    def _pull_error(self, image: str, text: str) -> ImageError:
        error = image_error(image, text)
        if error.again == "limited":
            error.after_s = retry_after_in(text)
            if error.after_s is None:
                error.after_s = ask_retry_after(image, plain_http=self._is_insecure(manifest_of(image)[0]))
        return error

    def _is_insecure(self, registry: str) -> bool:
        """Whether the engine is told to talk to a registry without TLS."""
        with _errors():
            known = self._client(QUICK_S).info().get("RegistryConfig") or {}
        if (known.get("IndexConfigs") or {}).get(registry, {}).get("Secure") is False:
            return True
        try:
            address = ipaddress.ip_address(registry.partition(":")[0])
        except ValueError:
            return False
        return any(address in ipaddress.ip_network(network) for network in known.get("InsecureRegistryCIDRs") or ())


class _OneSocket(UnixHTTPAdapter):
    """docker's own keeps a pool for each address, so that nearly every call would open a connection."""

    def get_connection(self, url: str | bytes, proxies: object = None) -> Any:
        return super().get_connection("http+docker://localhost")


def _url(client: Any, path: str) -> str:
    return f"{client.base_url}/v{client.api_version}{path}"


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except APIError as error:
        status = error.response.status_code if error.response is not None else 0
        raise EngineError(str(error.explanation or error), status=status) from error
    except (requests.RequestException, DockerException, OSError, ValueError) as error:
        raise EngineUnreachableError(
            f"the container engine does not answer: {type(error).__name__}", sent=not _never_connected(error)
        ) from error


def _never_connected(error: BaseException) -> bool:
    """Whether the engine's socket was not there, or nobody listened; requests hides that in the cause's arguments."""
    inside = [part for part in error.args if isinstance(part, BaseException)]
    return isinstance(error, (ConnectionRefusedError, FileNotFoundError)) or any(map(_never_connected, inside))


def _container(raw: Mapping[str, Any]) -> ContainerFacts:
    state = raw["State"]
    return ContainerFacts(
        id=raw["Id"],
        name=raw["Name"].lstrip("/"),
        labels=raw["Config"].get("Labels") or {},
        status=state["Status"],
        pid=int(state.get("Pid") or 0),
        exit_code=int(state.get("ExitCode") or 0),
        oom_killed=bool(state.get("OOMKilled")),
        log_path=raw.get("LogPath") or "",
        inspect=raw,
    )
