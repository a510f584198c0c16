"""A portal as the agent sees it: the node API over real HTTP, with what its answers depend on of a lease's life."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

TOKEN = "lnt_test"
ENROLMENT_TOKEN = "lne_test"
NODE_ID = "nd-test"


class FakePortal:
    """Serves `leases` as desired state and keeps what it is told. A context manager."""

    def __init__(self, host: str = "127.0.0.1", node_id: str = NODE_ID) -> None:
        self.leases: dict[str, dict[str, Any]] = {}
        self.node_id = node_id
        self.reports: list[dict[str, Any]] = []
        self.heartbeats: list[dict[str, Any]] = []
        self.inventories: list[dict[str, Any]] = []
        self.preflights: list[dict[str, Any]] = []
        self.enrolments: list[dict[str, Any]] = []
        self.ssh_events: list[dict[str, Any]] = []
        self.unreadable: set[str] = set()  # ids of SSH events that make it answer 400
        self.pulls: list[str] = []
        self.refused = 0  # calls that got `status`
        self.status = 0  # answer every call with this status instead
        self.silence_s = 900.0
        self.broker_url: str | None = None
        self._changed = threading.Condition()
        self._server = ThreadingHTTPServer((host, 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self._server.server_address[0]!s}:{self._server.server_port}"

    def forget(self) -> None:
        """Forget every lease and every report."""
        with self._changed:
            self.leases.clear()
            self.reports.clear()

    def want(self, lease: dict[str, Any]) -> None:
        """From now on a lease should exist as given."""
        with self._changed:
            self.leases[lease["id"]] = lease

    def stop(self, lease_id: str) -> None:
        """From now on a lease should end."""
        with self._changed:
            self.leases[lease_id]["want"] = "stop"

    def events(self, lease_id: str, generation: int | None = None) -> list[str]:
        """Names of the reports of a lease, in the order they came."""
        with self._changed:
            return [
                r["event"] for r in self.reports if r["lease"] == lease_id and generation in {None, r["generation"]}
            ]

    def report(self, lease_id: str, event: str) -> dict[str, Any]:
        """The last report of that name."""
        with self._changed:
            return next(r for r in reversed(self.reports) if r["lease"] == lease_id and r["event"] == event)

    def wait_for(self, condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
        """Wait until something holds that a call to the portal can make true."""
        with self._changed:
            if not self._changed.wait_for(condition, seconds):
                told = [(r["lease"], r["event"], r["detail"]) for r in self.reports]
                raise AssertionError(f"not within {seconds} s: {what}; reports: {told}")

    def wait_event(self, lease_id: str, event: str, seconds: float = 60) -> dict[str, Any]:
        """Wait for a report; returns it."""
        self.wait_for(lambda: event in self.events(lease_id), f"{event} of {lease_id}", seconds)
        return self.report(lease_id, event)

    def answer(self, method: str, path: str, token: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """The node API, one call."""
        url = urlsplit(path)
        name = url.path.removeprefix("/api/node/v1/")
        with self._changed:
            try:
                if self.status:
                    self.refused += 1
                    return self.status, {"code": "made_to_fail", "detail": "made to fail"}
                if name == "enrol":
                    return self._enrol(body)
                if token != f"Bearer {TOKEN}":
                    return 401, {"code": "node_token_invalid", "detail": "revoked"}
                if any(event["id"] in self.unreadable for event in body.get("events", ())):
                    return 400, {"code": "invalid", "detail": "made to fail"}
                return 200, self._route(method, name, parse_qs(url.query), body)
            finally:
                self._changed.notify_all()

    def _enrol(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if body["enrolment_token"] != ENROLMENT_TOKEN or self.enrolments:
            return 401, {"code": "enrolment_token_invalid", "detail": "The enrolment token is not valid."}
        self.enrolments.append(body)
        return 201, {
            "node_id": self.node_id, "node_name": "test", "node_token": TOKEN, "broker_url": self.broker_url,
            "queue": f"node.{self.node_id}", "heartbeat_s": 1, "pull_s": 1, "silence_s": self.silence_s,
        }  # fmt: skip

    def _route(self, method: str, name: str, query: dict[str, list[str]], body: dict[str, Any]) -> dict[str, Any]:
        if method == "GET":
            lease_id = query.get("lease", [""])[0]
            self.pulls.append(lease_id)
            wanted = [lease for lease in self.leases.values() if lease_id in {"", lease["id"]}]
            return {"server_time": "2026-01-01T00:00:00Z", "leases": json.loads(json.dumps(wanted))}
        if name == "heartbeat":
            self.heartbeats.append(body)
            return {"server_time": "2026-01-01T00:00:00Z", "unknown": []}
        if name in {"inventory", "preflight"}:
            {"inventory": self.inventories, "preflight": self.preflights}[name].append(body)
            return {}
        if name == "ssh-events":
            self.ssh_events += body["events"]
            return {}
        return self._take_report(name.split("/")[1], body)

    def _take_report(self, lease_id: str, body: dict[str, Any]) -> dict[str, Any]:
        self.reports.append({"lease": lease_id, **body})
        lease = self.leases.get(lease_id)
        if lease is None or lease["generation"] != body["generation"]:
            return {"state": "", "want": "none"}
        if body["event"] in {"failed", "exited", "deadline"}:
            lease["want"] = "stop"
        if body["event"] in {"cleaned", "cleaning_failed"}:
            del self.leases[lease_id]
            return {"state": "ended", "want": "none"}
        return {"state": "", "want": lease["want"]}


def _handler(portal: FakePortal) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def log_message(self, *_: object) -> None:
            """Stay quiet."""

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            status, answer = portal.answer(self.command, self.path, self.headers.get("Authorization", ""), body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    return Handler


def lease(lease_id: str, devices: list[str], image: str, **changes: object) -> dict[str, Any]:
    """One element of `desired.leases`, small enough for a test machine."""
    return {
        "id": lease_id, "generation": 1, "want": "run", "stop_reason": "", "devices": devices, "image": image,
        "cpus_milli": 1000, "memory_bytes": 256 << 20, "shm_bytes": 64 << 20, "pids": 128,
        "workspace_bytes": 64 << 20, "authorized_keys": [], "deadline_s": None, "stop_grace_s": 5, **changes,
    }  # fmt: skip
