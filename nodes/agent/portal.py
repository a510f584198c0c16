"""The portal's node API, as calls. Only this module speaks HTTP to the portal; see docs/node-protocol.md.

A call either returns its typed answer or raises one of the errors here; who repeats what is the caller's business.
"""

import ipaddress
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

from nodes.agent import VERSION
from nodes.agent.config import Identity
from nodes.agent.contact import Contact
from nodes.agent.failures import AgentError
from nodes.agent.log import logger

TIMEOUT_S = (5.0, 20.0)  # to connect, and between bytes of the answer
UNAUTHORIZED = 401


class PortalUnavailableError(Exception):
    """No usable answer (network, 5xx, 429): try again later."""


class PortalRefusedError(Exception):
    """The portal understood and said no (4xx); repeating the same call is of no use."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.status = status
        self.code = code


class RevokedError(PortalRefusedError):
    """The node token is not accepted any more. No further call is made by this process."""


@dataclass(frozen=True)
class HeartbeatAnswer:
    """The ids of leases the portal does not know here, and whether it wants the inventory again."""

    unknown: tuple[str, ...]
    inventory: bool = False


@dataclass(frozen=True)
class DesiredAnswer:
    """Elements of `desired.leases` as they came; `nodes.agent.desired.parse_lease` reads them."""

    leases: tuple[Mapping[str, object], ...]


@dataclass(frozen=True)
class ReportAnswer:
    """The portal's word after a report: the lease's state there, and what it wants here now."""

    state: str
    want: Literal["run", "stop", "none"]


@dataclass(frozen=True)
class Report:
    """One event of one lease, as `POST leases/<id>/report` takes it."""

    lease_id: str
    generation: int
    event: str
    detail: str = ""
    container_id: str | None = None
    failure: str = ""
    evidence: Mapping[str, object] | None = None


class _Bearer(requests.auth.AuthBase):
    """Sets the node token; being an auth object it also keeps a .netrc of the machine from replacing it."""

    def __init__(self, token: str) -> None:
        self._token = token

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._token:
            request.headers["Authorization"] = f"Bearer {self._token}"
        return request


class PortalClient:
    """Keep-alive client of one portal with one node token; safe to use from several threads."""

    def __init__(self, base_url: str, token: str, contact: Contact | None = None) -> None:
        self._base = base_url.rstrip("/") + "/api/node/v1/"
        self._auth = _Bearer(token)
        self._contact = contact
        self._revoked = threading.Event()
        self._session = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=16))
        self._session.headers["User-Agent"] = f"lessor-agent/{VERSION}"
        # The machine's proxy and certificates are read once: requests would read the environment at each call.
        found = self._session.merge_environment_settings(self._base, {}, None, None, None)
        self._session.proxies.update(found["proxies"])
        self._session.verify, self._session.trust_env = found["verify"], False

    @property
    def revoked(self) -> bool:
        """Whether the portal has refused the node token."""
        return self._revoked.is_set()

    def enrol(self, facts: Mapping[str, object], portal_url: str) -> Identity:
        """Trade the enrolment token in `facts` for an identity."""
        answer = self._call("POST", "enrol", facts)
        try:
            return Identity(
                portal_url=portal_url,
                node_id=str(answer["node_id"]),
                node_name=str(answer["node_name"]),
                node_token=str(answer["node_token"]),
                broker_url=str(answer["broker_url"]) if answer.get("broker_url") else None,
                queue=str(answer["queue"]),
                heartbeat_s=_number(answer, "heartbeat_s", 10),
                pull_s=_number(answer, "pull_s", 30),
                silence_s=_number(answer, "silence_s", 900),
            )
        except KeyError as error:
            raise PortalUnavailableError(f"the portal's answer to enrol lacks {error}") from error

    def inventory(self, facts: Mapping[str, object]) -> None:
        """Tell what this machine is."""
        self._call("POST", "inventory", facts)

    def preflight(self, *, ok: bool, checks: list[dict[str, object]]) -> None:
        """Tell whether a lease could run here."""
        self._call("POST", "preflight", {"ok": ok, "checks": checks})

    def heartbeat(self, facts: Mapping[str, object]) -> HeartbeatAnswer:
        """Tell what runs here."""
        answer = self._call("POST", "heartbeat", facts)
        unknown = answer.get("unknown", [])
        ids = tuple(str(lease) for lease in unknown) if isinstance(unknown, list) else ()
        return HeartbeatAnswer(ids, inventory=answer.get("inventory") is True)

    def desired(self, lease_id: str | None = None) -> DesiredAnswer:
        """Ask what should exist here: everything, or one lease (at most one element)."""
        answer = self._call("GET", "desired", params={"lease": lease_id} if lease_id else None)
        leases = answer.get("leases")
        if not isinstance(leases, list):
            # A whole pull without a list must not read as "nothing should exist".
            raise PortalUnavailableError("the portal's answer to desired has no list of leases")
        return DesiredAnswer(tuple(lease for lease in leases if isinstance(lease, dict)))

    def report(self, report: Report) -> ReportAnswer:
        """Send one event of a lease."""
        body = {
            "generation": report.generation,
            "event": report.event,
            "detail": report.detail[:1000],
            "container_id": report.container_id,
            "failure": report.failure,
            "evidence": dict(report.evidence or {}),
        }
        answer = self._call("POST", f"leases/{report.lease_id}/report", body)
        want = answer.get("want")
        return ReportAnswer(
            state=str(answer.get("state", "")), want="run" if want == "run" else "stop" if want == "stop" else "none"
        )

    def ssh_events(self, events: list[dict[str, object]]) -> None:
        """Tell what the SSH gateway wrote to its audit file, oldest first."""
        self._call("POST", "ssh-events", {"events": events})

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        params: Mapping[str, str] | None = None,
    ) -> dict[str, object]:
        if self.revoked:
            raise RevokedError(UNAUTHORIZED, "node_token_invalid", "this node was revoked")
        try:
            response = self._session.request(
                method, self._base + path, json=body, params=params, auth=self._auth, timeout=TIMEOUT_S,
                allow_redirects=False,
            )  # fmt: skip
            answer = response.json() if response.content else {}
        except (requests.RequestException, ValueError) as error:
            # The type only: the text of some requests errors repeats the URL and headers.
            raise PortalUnavailableError(f"{method} {path}: {type(error).__name__}") from error
        if not isinstance(answer, dict):
            raise PortalUnavailableError(f"{method} {path}: the answer is not a JSON object")
        self._judge(f"{method} {path}", response.status_code, answer)
        if self._contact:
            self._contact.touch()
        return answer

    def _judge(self, call: str, status: int, answer: Mapping[str, object]) -> None:
        if status < requests.codes.multiple_choices:
            return
        if status >= requests.codes.server_error or status < requests.codes.bad_request or status == 429:  # noqa: PLR2004  # too many requests
            raise PortalUnavailableError(f"{call}: HTTP {status}")
        code, detail = str(answer.get("code", "")), str(answer.get("detail", ""))[:300]
        if status == UNAUTHORIZED and not call.endswith(" enrol"):
            self._revoked.set()
            logger.error("the portal refused this node's token; running leases end by the silence rule")
            raise RevokedError(status, code, detail)
        raise PortalRefusedError(status, code, detail)


def check_url(url: str, *, allow_plain_http: bool) -> None:
    """Refuse to send a node token in clear, except on loopback or where the owner of the machine insists.

    Raises:
        AgentError: not an http(s) URL, or plain http to another machine.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise AgentError(f"The portal's address must be an http(s) URL, not {url!r}.")
    if parts.scheme == "https" or _is_loopback(parts.hostname):
        return
    if not allow_plain_http:
        raise AgentError(
            f"{url} is plain HTTP to another machine: the node token would travel readable. "
            "Use https, or --allow-plain-http on a network you trust."
        )
    logger.warning("plain HTTP to %s: the node token travels readable on the network", parts.hostname)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _number(answer: Mapping[str, object], field: str, default: float) -> float:
    value = answer.get(field, default)
    return float(value) if isinstance(value, (int, float)) and value > 0 else default
