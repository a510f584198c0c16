"""An image registry of the tests' own, which can be slow, refuse, hang and break off."""

import gzip
import hashlib
import io
import json
import os
import tarfile
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


@dataclass
class Repository:
    """One repository with one image, and how it behaves. Tests change it while it is being pulled."""

    manifest: bytes
    blobs: dict[str, bytes]
    status: int = 0  # answer every call for a manifest with this instead
    headers: dict[str, str] = field(default_factory=dict)  # beside `status`
    refusals: int = 1 << 30  # so many times, then no more
    hangs: bool = False  # answer a manifest's headers, and never its body
    bytes_per_s: int = 0  # of a layer; 0: as fast as it goes
    cuts: int = 0  # break off so many layers in the middle

    @property
    def digest(self) -> str:
        """The manifest's, as `name@sha256:…` wants it."""
        return _digest(self.manifest)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """An engine that hangs up is what some tests are about."""


class StubRegistry:
    """Serves repositories over plain HTTP. A context manager."""

    def __init__(self, host: str) -> None:
        self.repositories: dict[str, Repository] = {}
        self.asked: list[str] = []  # "GET team/img/manifests/1" in the order they came
        self.asked_at: list[float] = []  # by the monotonic clock
        self.over = threading.Event()  # ends what hangs
        self._server = _Server((host, 0), type("Handler", (_Handler,), {"registry": self}))
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def address(self) -> str:
        """Host and port, as they stand at the head of an image's name."""
        return f"{self._server.server_address[0]!s}:{self._server.server_port}"

    def add(self, name: str, root: bytes, *, padding: int = 0) -> Repository:
        """An image from the tar of its root, with another layer of so many bytes that do not compress."""
        layers = [root] + ([_tar("padding", os.urandom(padding))] if padding else [])
        packed = [gzip.compress(layer, compresslevel=1, mtime=0) for layer in layers]
        config = {
            "architecture": "amd64", "os": "linux", "config": {"Cmd": ["/sleeper"], "Env": ["MARK=registry"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer) for layer in layers]},
        }  # fmt: skip
        blobs = {_digest(blob): blob for blob in (json.dumps(config).encode(), *packed)}
        described = [{"size": len(blob), "digest": digest} for digest, blob in blobs.items()]
        manifest = {
            "schemaVersion": 2, "mediaType": MANIFEST, "config": {"mediaType": CONFIG, **described[0]},
            "layers": [{"mediaType": LAYER, **entry} for entry in described[1:]],
        }  # fmt: skip
        made = self.repositories[name] = Repository(json.dumps(manifest).encode(), blobs)
        return made

    def count(self, word: str) -> int:
        """How many calls had this in them."""
        return sum(word in call for call in list(self.asked))


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _tar(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: StubRegistry

    def do_GET(self) -> None:
        self._serve(body=True)

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""

    def _serve(self, *, body: bool) -> None:
        path = self.path.removeprefix("/v2/")
        if not path:
            self._answer(200, b"{}", body=body)
            return
        self.registry.asked_at.append(time.monotonic())
        self.registry.asked.append(f"{self.command} {path}")
        name, kind, what = path.rsplit("/", 2)
        repository = self.registry.repositories.get(name)
        if repository is None:
            self._refuse(404, "NAME_UNKNOWN", {}, body=body)
        elif kind == "manifests":
            self._manifest(repository, what, body=body)
        else:
            self._blob(repository, repository.blobs[what])

    def _manifest(self, repository: Repository, reference: str, *, body: bool) -> None:
        if repository.status and repository.refusals > 0:
            repository.refusals -= 1
            self._refuse(repository.status, _code(repository.status), repository.headers, body=body)
        elif reference not in {"1", "latest", repository.digest}:
            self._refuse(404, "MANIFEST_UNKNOWN", {}, body=body)
        elif repository.hangs and body:
            self._head(200, MANIFEST, len(repository.manifest), repository.digest)
            self.registry.over.wait(60)
            self.close_connection = True
        else:
            self._head(200, MANIFEST, len(repository.manifest), repository.digest)
            self.wfile.write(repository.manifest if body else b"")

    def _blob(self, repository: Repository, blob: bytes) -> None:
        self._head(200, "application/octet-stream", len(blob), "")
        if repository.cuts and len(blob) > 4096:
            repository.cuts -= 1
            self.wfile.write(blob[: len(blob) // 2])
            self.close_connection = True
            return
        step = repository.bytes_per_s // 20 or len(blob)
        for start in range(0, len(blob), step):
            self.wfile.write(blob[start : start + step])
            if repository.bytes_per_s and self.registry.over.wait(0.05):
                return

    def _refuse(self, status: int, code: str, headers: dict[str, str], *, body: bool) -> None:
        content = json.dumps({"errors": [{"code": code, "message": code.replace("_", " ").lower()}]}).encode()
        self._answer(status, content, headers, body=body)

    def _answer(self, status: int, content: bytes, headers: dict[str, str] | None = None, *, body: bool) -> None:
        self._head(status, "application/json", len(content), "", headers)
        self.wfile.write(content if body else b"")

    def _head(self, status: int, kind: str, length: int, digest: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        for name, value in {"Docker-Content-Digest": digest, **(headers or {})}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()


def _code(status: int) -> str:
    return {401: "UNAUTHORIZED", 403: "DENIED", 404: "NAME_UNKNOWN", 429: "TOOMANYREQUESTS"}.get(status, "UNKNOWN")
