"""The only reader of ``os.environ``: typed, and it refuses nonsense by the variable's name.

Every reader also takes ``NAME_FILE``, a path whose content is the value: a secret need not stand in a process list.
"""

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

TRUE = {"1", "true", "yes", "on"}
FALSE = {"0", "false", "no", "off", ""}


def raw(name: str) -> str | None:
    """The value of ``name``, or the stripped content of the file that ``NAME_FILE`` points to, or None."""
    path = os.environ.get(f"{name}_FILE")
    if path and name in os.environ:
        raise ImproperlyConfigured(f"Set {name} or {name}_FILE, not both.")
    if path:
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ImproperlyConfigured(f"{name}_FILE: cannot read {path}: {error.strerror}.") from error
    return os.environ.get(name)


def text(name: str, default: str = "") -> str:
    """A string; missing gives ``default``."""
    value = raw(name)
    return default if value is None else value


def flag(name: str, *, default: bool = False) -> bool:
    """A switch: 1/true/yes/on or 0/false/no/off."""
    value = raw(name)
    if value is None:
        return default
    word = value.strip().lower()
    if word in TRUE:
        return True
    if word in FALSE:
        return False
    raise ImproperlyConfigured(f"{name} must be true or false, not {value!r}.")


def number(name: str, default: int, *, least: int = 0) -> int:
    """A whole number of at least ``least``."""
    value = raw(name)
    if value is None:
        return default
    try:
        result = int(value)
    except ValueError as error:
        raise ImproperlyConfigured(f"{name} must be a whole number, not {value!r}.") from error
    if result < least:
        raise ImproperlyConfigured(f"{name} must be at least {least}, not {result}.")
    return result


def choice(name: str, default: str, choices: tuple[str, ...]) -> str:
    """One of a few words."""
    value = text(name, default).strip().lower()
    if value not in choices:
        raise ImproperlyConfigured(f"{name} must be one of {', '.join(choices)}, not {value!r}.")
    return value


def words(name: str, default: list[str]) -> list[str]:
    """A comma-separated list, blanks dropped."""
    value = raw(name)
    if value is None:
        return default
    return [word.strip() for word in value.split(",") if word.strip()]


def database(name: str, default: str, *, pooled: bool) -> dict[str, object]:
    """A Django ``DATABASES`` entry from ``sqlite:///path`` or ``postgresql://user:password@host:port/name``.

    ``pooled`` turns psycopg's own connection pool on; it has no meaning on SQLite.
    """
    parts = urlsplit(text(name, default))
    if parts.scheme == "sqlite":
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "CONN_MAX_AGE": 600,  # opening the file and telling it its pragmas costs more than most questions
            "NAME": parts.path[1:] if parts.path.startswith("//") else parts.path.removeprefix("/") or ":memory:",
            "OPTIONS": {
                "transaction_mode": "IMMEDIATE",
                "timeout": 20,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA foreign_keys=ON;",
            },
        }
    if parts.scheme in {"postgres", "postgresql"}:
        options: dict[str, object] = {"pool": {"min_size": 1, "max_size": 16, "timeout": 10}} if pooled else {}
        return {
            "ENGINE": "django.db.backends.postgresql",
            "CONN_HEALTH_CHECKS": True,  # a connection from before a restart of the server is not handed out
            "NAME": parts.path.lstrip("/"),
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "HOST": unquote(parts.hostname or ""),
            "PORT": str(parts.port or ""),
            "OPTIONS": options,
        }
    raise ImproperlyConfigured(f"{name} must start with sqlite:/// or postgresql://, not {parts.scheme!r}.")
