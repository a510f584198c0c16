"""A renter, through the public interfaces only: the pages for sign-up, key and token; the API for the rest; OpenSSH."""

from __future__ import annotations

import email
import html
import json
import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import requests

from scripts.demolib.processes import DemoError, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence


class Renter:
    """One person with a browser session, later a token, and an SSH key on disk."""

    def __init__(self, base: str, mail_dir: Path, home: Path) -> None:
        self.base, self.mail_dir, self.home = base, mail_dir, home
        self.browser = requests.Session()
        self.api = requests.Session()
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)

    # --- the browser ------------------------------------------------------------------------------------------------
    def form(self, path: str, values: dict[str, Any], *, expect: str = "") -> requests.Response:
        """Open a page, send its form with the page's own CSRF token, and follow where it leads."""
        page = self.browser.get(urljoin(self.base, path), timeout=20)
        page.raise_for_status()
        found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
        if not found:
            raise DemoError(f"{path} has no form.")
        answer = self.browser.post(
            page.url, data={"csrfmiddlewaretoken": found[1], **values}, headers={"Referer": page.url}, timeout=20
        )
        answer.raise_for_status()
        if expect and expect not in answer.text and expect not in answer.url:
            errors = re.findall(r'class="[^"]*error[^"]*"[^>]*>\s*([^<]+)', answer.text)
            raise DemoError(f"{path} did not lead to {expect!r}: {'; '.join(e.strip() for e in errors) or answer.url}")
        return answer

    def sign_up(self, address: str, password: str) -> None:
        """Sign up, confirm the address by the link in the mail, sign in."""
        self.form("/account/signup/", {"email": address, "password1": password, "password2": password})
        link = self._mailed_link(address)
        self.form(link, {})
        self.sign_in(address, password)

    def sign_in(self, address: str, password: str) -> None:
        """Sign in on the page."""
        self.form("/account/login/", {"login": address, "password": password}, expect="/leases/")

    def _mailed_link(self, address: str) -> str:
        found: list[str] = []

        def arrived() -> bool:
            for file in self.mail_dir.glob("*.log"):
                text = file.read_text(errors="replace")
                if f"To: {address}" not in text:
                    continue
                message = email.message_from_string(text)
                parts = message.walk() if message.is_multipart() else [message]
                for part in parts:
                    if part.get_content_type() == "text/plain":
                        body = part.get_payload(decode=True)
                        found.extend(
                            re.findall(
                                r"https?://\S+/confirm-email/\S+", body.decode() if isinstance(body, bytes) else ""
                            )
                        )
            return bool(found)

        wait_until("The verification mail", arrived, seconds=20)
        return urljoin(self.base, re.sub(r"^https?://[^/]+", "", found[-1]))

    def add_key(self, name: str = "demo") -> Path:
        """Make an Ed25519 key and add its public half on the page."""
        key = self.home / f"{name}_ed25519"
        if not key.exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(key)], check=True)
        public = key.with_suffix(".pub").read_text()
        self.form("/access/keys/", {"name": name, "public_key": public}, expect="SHA256:")
        return key

    def create_token(self) -> None:
        """Create an API token on the page and keep the secret that is shown once."""
        scopes = ["offers:read", "leases:read", "leases:write", "keys:read", "billing:read"]
        answer = self.form("/access/tokens/", {"name": "demo", "scopes": scopes, "ends": "30"})
        found = re.search(r"lsr_[A-Za-z0-9_-]+", html.unescape(answer.text))
        if not found:
            raise DemoError("The page did not show the new token.")
        self.api.headers["Authorization"] = f"Bearer {found[0]}"

    # --- the API ------------------------------------------------------------------------------------------------------
    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One API call; DemoError with the problem's words when it is refused."""
        answer = self.api.request(method, f"{self.base}/api/v1/{path}", json=body, timeout=20)
        content: dict[str, Any] = answer.json()
        if not answer.ok:
            raise DemoError(
                f"{method} /api/v1/{path}: {answer.status_code} {content.get('code')}: {content.get('detail')}"
            )
        return content

    def follow(self, lease_id: str, until: str, *, since: float, seconds: float = 120) -> tuple[dict[str, Any], float]:
        """Poll the lease until the field ``until`` is set; ``(lease, milliseconds since)``."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            lease = self.call("GET", f"leases/{lease_id}")
            if lease.get(until):
                return lease, (time.monotonic() - since) * 1000
            if lease["state"] == "ended":
                raise DemoError(f"The lease ended: {lease['end_reason']} {lease.get('end_detail', '')}")
            time.sleep(0.02)
        raise DemoError(
            f"{until} was not set within {seconds:.0f} s; the lease is {lease['state']} ({lease.get('progress', '')})."
        )

    # --- OpenSSH ------------------------------------------------------------------------------------------------------
    def ssh_options(self, lease: dict[str, Any], key: Path) -> list[str]:
        """For ssh, scp, sftp and rsync: this key only, and no host but the one whose key the portal showed."""
        known = self.home / f"known_hosts_{lease['id']}"
        known.write_text(lease["ssh"]["known_hosts"] + "\n")
        return [
            "-F", "none", "-i", str(key), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10",
            "-o", f"UserKnownHostsFile={known}", "-o", "GlobalKnownHostsFile=/dev/null",
            "-o", "StrictHostKeyChecking=yes",
        ]  # fmt: skip

    def ssh_command(self, lease: dict[str, Any], key: Path, *words: str, options: Sequence[str] = ()) -> list[str]:
        """The command line of a real ``ssh`` into the lease."""
        ssh = lease["ssh"]
        place = ["-p", str(ssh["port"]), *options, f"{ssh['user']}@{ssh['host']}"]
        return ["ssh", *self.ssh_options(lease, key), *place, *words]

    def ssh(self, lease: dict[str, Any], key: Path, command: str) -> str:
        """Run a command in the lease; what it prints, or DemoError with ssh's words."""
        done = subprocess.run(
            self.ssh_command(lease, key, command),
            capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode:
            raise DemoError(f"ssh ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def probe(self, lease: dict[str, Any], key: Path) -> tuple[list[str], str]:
        """``(sorted device UUIDs as seen inside the container, how they were seen)``."""
        seen = json.loads(self.ssh(lease, key, "/.lease/bin/probe"))
        return sorted(seen["devices"]), str(seen["source"])
