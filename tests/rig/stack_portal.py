"""The portal of a stack: gunicorn, uvicorn, Celery worker and beat and a private Redis as processes.

What is done to the portal itself belongs here (start it, kill a part, run a management command); who uses it does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import requests

from scripts.demolib.portal_stack import ROOT, Portal
from scripts.demolib.processes import DemoError, Processes, free_port, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PORTAL_PROGRAMS = ("web", "streams", "worker", "beat")
SECOND = ("worker", "beat")


class RigPortal(Portal):
    """The demo's portal, listening where a node can reach it; without the proxy in front."""

    def __init__(
        self, processes: Processes, var: Path, host: str, database_url: str, settings: Mapping[str, str]
    ) -> None:
        self.redis_addresses = f"127.0.0.1 {host}"
        super().__init__(processes, var, free_port())
        self.host = host
        self.url = f"http://{host}:{self.port}"
        self.env |= {
            "DJANGO_SETTINGS_MODULE": "portal.settings",
            "DATABASE_URL": database_url,
            "DB_POOL": "true",
            # pages are not what is tested here: static files are served as they lie, which saves collecting them
            "LESSOR_TESTING": "true",
            "PORTAL_URL": self.url,
            "PRESENCE_URL": f"{self.url}/healthz",
            "ALLOWED_HOSTS": host,
            "TRUSTED_PROXIES": "0",
            "NODE_BROKER_PUBLIC_URL": f"redis://{host}:{self.redis_port}/1",
            "NODE_RESERVED_CPUS_MILLI": "0",
            "LEASE_WORKSPACE_BYTES": str(64 << 20),
            # idle limits of seconds, for those who ask for one
            "IDLE_TIMEOUT_MIN_S": "1",
            "IDLE_WARN_BEFORE_S": "4",
            "IDLE_SWEEP_S": "1",
            **settings,
        }

    def manage(self, *arguments: str) -> str:
        """Run a management command as an operator would, in a process of its own."""
        done = subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), *arguments],
            env={**os.environ, **self.env}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise DemoError(f"manage.py {arguments[0]}: {done.stdout}{done.stderr}")
        return done.stdout

    def prepare(self) -> None:
        """The database."""
        (self.var / "static").mkdir(exist_ok=True)
        self.manage("migrate", "--no-input", "-v0")

    def start(self) -> None:
        """web, streams, worker, beat."""
        self.start_programs(f"{self.host}:{self.port}", free_port())
        wait_until("the portal", self._answers, seconds=90, pause=0.1)

    def kill(self, *names: str) -> None:
        """End programs (all four without a name) as a machine that loses its power does."""
        for name in names or PORTAL_PROGRAMS:
            self.processes.kill(name)

    def start_second(self) -> None:
        """Another worker and another beat beside the first, as after a deployment gone wrong."""
        for name in SECOND:
            self.start_program(name, suffix="-2")

    def stop_second(self) -> None:
        """Ends `start_second`."""
        for name in SECOND:
            self.processes.stop(f"{name}-2")

    def kill_redis(self) -> None:
        """Redis goes, with all it held: cache, messages, the nodes' users."""
        self.processes.kill("redis")

    def _answers(self) -> bool:
        self.processes.check()
        try:
            return requests.get(f"{self.url}/healthz", timeout=3).ok
        except requests.RequestException:
            return False
