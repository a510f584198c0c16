"""The portal on the embedded default: SQLite, a private redis-server, web and streams behind one port, worker, beat."""

from __future__ import annotations

import io
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import django
import requests
from django.apps import apps
from django.core.management import CommandError, call_command

from scripts.demolib.processes import DemoError, accepts, free_port, port_is_free, wait_until

if TYPE_CHECKING:
    from scripts.demolib.processes import Processes

ROOT = Path(__file__).resolve().parent.parent.parent


class Portal:
    """Starts and names the portal's processes; ``env`` is what each of them gets."""

    redis_addresses = "127.0.0.1"

    def __init__(self, processes: Processes, var: Path, port: int) -> None:
        if not port_is_free(port):
            raise DemoError(f"Port {port} is taken. End what listens there, or choose another with --port.")
        self.processes, self.var, self.port = processes, var, port
        self.url = f"http://localhost:{port}"
        self.redis_port = self._redis_port()
        password = self._secret("redis_password")
        redis = f"redis://:{password}@127.0.0.1:{self.redis_port}"
        self.env = {
            "LESSOR_VAR": str(var),
            "SECRET_KEY_FILE": str(self._secret_file("secret_key")),
            "DATABASE_URL": f"sqlite:///{var / 'lessor.sqlite3'}",
            "REDIS_URL": f"{redis}/0",
            "NODE_BROKER_URL": f"{redis}/1",
            "NODE_BROKER_PUBLIC_URL": f"redis://127.0.0.1:{self.redis_port}/1",
            "PORTAL_URL": self.url,
            # The operator of a demo on loopback signs in with the password it prints; a real portal asks for more.
            "STAFF_MFA": "false",
            "PRESENCE_URL": f"http://127.0.0.1:{port}/healthz",
            "TRUSTED_PROXIES": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def _redis_port(self) -> int:
        """The port of an earlier run while it is free: the node was told it at enrolment."""
        record = self.var / "redis_port"
        known = int(record.read_text()) if record.exists() else 0
        port = known if known and port_is_free(known) else free_port()
        record.write_text(str(port))
        return port

    def _secret_file(self, name: str) -> Path:
        path = self.var / name
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(secrets.token_urlsafe(48))
        return path

    def _secret(self, name: str) -> str:
        return self._secret_file(name).read_text()

    def manage(self, *arguments: str) -> str:
        """Run a management command in this process, with the portal's environment; its output, or DemoError."""
        self._load()
        out = io.StringIO()
        try:
            call_command(*arguments, stdout=out, stderr=out)
        except CommandError as error:
            raise DemoError(f"manage.py {arguments[0]}: {error}") from error
        return out.getvalue()

    def _load(self) -> None:
        """Make this process one of the portal's, for commands and for reading the database."""
        if not apps.ready:
            os.environ.update(self.env, DJANGO_SETTINGS_MODULE="portal.settings", LOG_LEVEL="WARNING", DB_POOL="false")
            django.setup()

    def start_redis(self) -> None:
        """A redis-server of our own on a free loopback port; nothing is kept on disk, the database is the truth."""
        conf = self.var / "redis.conf"
        conf.touch(mode=0o600)
        conf.write_text(
            f"bind {self.redis_addresses}\nport {self.redis_port}\nrequirepass {self._secret('redis_password')}\n"
            'save ""\nappendonly no\ndaemonize no\n'
        )
        self.redis = self.processes.start("redis", ["redis-server", str(conf)])
        wait_until("redis-server", lambda: accepts(self.redis_port))

    def prepare(self) -> None:
        """Database and static files."""
        self.manage("migrate", "--no-input")
        manifest = self.var / "static" / "staticfiles.json"
        newest = max((p.stat().st_mtime for p in (ROOT / "static").rglob("*") if p.is_file()), default=0)
        lock = (ROOT / "package-lock.json").stat().st_mtime
        if not manifest.exists() or manifest.stat().st_mtime < max(newest, lock):
            self.manage("collectstatic", "--no-input")

    def start(self) -> None:
        """web (gunicorn), streams (uvicorn), worker, beat, and nginx that joins the first two on one port."""
        web, streams = free_port(), free_port()
        self.start_programs(f"127.0.0.1:{web}", streams)
        wait_until("the web server", lambda: accepts(web))
        wait_until("the stream server", lambda: accepts(streams))
        self.processes.start("nginx", ["nginx", "-c", str(self._nginx_conf(web, streams)), "-p", str(self.var)])
        wait_until("the portal", self._healthy, seconds=30)

    def start_programs(self, web: str, streams: int) -> None:
        """The portal's own four: web on an ``address:port``, streams on a loopback port, worker, beat."""
        python = Path(sys.executable).parent
        run = self.processes.start
        run(
            "web",
            [str(python / "gunicorn"), "portal.wsgi", "--bind", web, "--worker-class", "gthread",
             "--workers", "2", "--threads", "4", "--keep-alive", "30", "--chdir", str(ROOT)],
            self.env,
        )  # fmt: skip
        run(
            "streams",
            [str(python / "uvicorn"), "portal.asgi:application", "--host", "127.0.0.1", "--port", str(streams),
             "--app-dir", str(ROOT), "--lifespan", "off", "--no-access-log", "--timeout-graceful-shutdown", "3"],
            self.env,
        )  # fmt: skip
        for name in ("worker", "beat"):
            self.start_program(name)

    def start_program(self, name: str, suffix: str = "") -> None:
        """Celery's ``worker`` or ``beat``; with a suffix, one more of them."""
        celery = [str(Path(sys.executable).parent / "celery"), "--workdir", str(ROOT), "-A", "portal.celery", name]
        options = {
            "worker": [
                "--pool",
                "threads",
                "--concurrency",
                "4",
                "--loglevel",
                "INFO",
                "--hostname",
                f"portal{suffix}@%h",
            ],
            "beat": ["--loglevel", "WARNING", "--schedule", str(self.var / f"beat-schedule{suffix}")],
        }  # fmt: skip
        self.processes.start(f"{name}{suffix}", [*celery, *options[name]], self.env)

    def _healthy(self) -> bool:
        self.processes.check()
        try:
            return requests.get(f"http://127.0.0.1:{self.port}/healthz", timeout=3).ok
        except requests.RequestException:
            return False

    def _nginx_conf(self, web: int, streams: int) -> Path:
        conf, tmp = self.var / "nginx.conf", self.var / "run" / "nginx"
        tmp.mkdir(parents=True, exist_ok=True)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temp = "\n".join(f"  {kind}_temp_path {tmp}/{kind};" for kind in kinds)
        conf.write_text(f"""daemon off;
user root;
worker_processes 1;
pid {tmp}/pid;
error_log {self.var}/log/nginx-error.log;
events {{ worker_connections 512; }}
http {{
{temp}
  access_log off;
  upstream web {{ server 127.0.0.1:{web}; keepalive 16; }}
  upstream streams {{ server 127.0.0.1:{streams}; }}
  server {{
    listen 127.0.0.1:{self.port};
    proxy_http_version 1.1;
    proxy_set_header Host $http_host;
    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    proxy_set_header X-Forwarded-Proto $scheme;
    proxy_set_header Connection "";
    location / {{ proxy_pass http://web; }}
    location /stream/ {{ proxy_pass http://streams; proxy_buffering off; proxy_read_timeout 1h; }}
  }}
}}
""")
        return conf
