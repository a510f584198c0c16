"""A renter, through the public interfaces only: the pages for sign-up, key and token; the API for the rest; OpenSSH."""

from __future__ import annotations

import email
import html
import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import requests

from scripts.demolib.processes import DemoError, wait_until


class Renter:
    """One person with a browser session, later a token, and an SSH key on disk."""

    def __init__(self, base: str, mail_dir: Path, home: Path) -> None:
        self.base, self.mail_dir, self.home = base, mail_dir, home
        self.browser = requests.Session()
        self.api = requests.Session()
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)

    # --- the browser ------------------------------------------------------------------------------------------------
    def _form(self, path: str, values: dict[str, Any], *, expect: str = "") -> requests.Response:
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
        self._form("/account/signup/", {"email": address, "password1": password, "password2": password})
        link = self._mailed_link(address)
        self._form(link, {})
        self._form("/account/login/", {"login": address, "password": password}, expect="/leases/")

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

    def add_key(self) -> Path:
        """Make an Ed25519 key and add its public half on the page."""
        key = self.home / "id_ed25519"
        if not key.exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "demo", "-f", str(key)], check=True)
        public = key.with_suffix(".pub").read_text()
        self._form("/access/keys/", {"name": "demo", "public_key": public}, expect="SHA256:")
        return key

    def create_token(self) -> None:
        """Create an API token on the page and keep the secret that is shown once."""
        scopes = ["offers:read", "leases:read", "leases:write", "keys:read", "billing:read"]
        answer = self._form("/access/tokens/", {"name": "demo", "scopes": scopes, "ends": "30"})
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
    def ssh(self, lease: dict[str, Any], key: Path, command: str) -> str:
        """Run a command in the lease by a real ``ssh``, checking the host key that the portal showed."""
        known = self.home / "known_hosts"
        known.write_text(lease["ssh"]["known_hosts"] + "\n")
        done = subprocess.run(
            ["ssh", "-i", str(key), "-p", str(lease["ssh"]["port"]), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes",
             "-o", f"UserKnownHostsFile={known}", "-o", "GlobalKnownHostsFile=/dev/null",
             "-o", "StrictHostKeyChecking=yes",
             "-o", "ConnectTimeout=10", f"{lease['ssh']['user']}@{lease['ssh']['host']}", command],
            capture_output=True, text=True, timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode:
            raise DemoError(f"ssh ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def probe(self, lease: dict[str, Any], key: Path) -> tuple[list[str], str]:
        """``(sorted device UUIDs as seen inside the container, how they were seen)``."""
        seen = json.loads(self.ssh(lease, key, "/.lease/bin/probe"))
        return sorted(seen["devices"]), str(seen["source"])
