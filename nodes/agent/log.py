"""One JSON line per step on standard error. Never a key, a token or an environment value: only ids and numbers."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

logger = logging.getLogger("lessor.agent")

_FIELDS = ("lease", "generation", "step", "ms", "error")


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object; the fields above are taken from `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line of JSON."""
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "msg": record.getMessage(),
        }
        line |= {name: getattr(record, name) for name in _FIELDS if hasattr(record, name)}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(level: str = "INFO") -> None:
    """Send the agent's own lines as JSON, and of the libraries' only warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logger.setLevel(level)


@contextmanager
def step(name: str, lease: str, generation: int = 0) -> Iterator[None]:
    """Log `name` with its duration when the block ends, and the error's text when it ends badly."""
    begin = time.monotonic()
    fields: dict[str, object] = {"lease": lease, "generation": generation, "step": name}
    try:
        yield
    except BaseException as error:
        fields["error"] = f"{type(error).__name__}: {error}"[:500]
        raise
    finally:
        fields["ms"] = round((time.monotonic() - begin) * 1000, 1)
        logger.log(logging.WARNING if "error" in fields else logging.INFO, name, extra=fields)
