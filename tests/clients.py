"""HTTP clients of the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.test import Client

if TYPE_CHECKING:
    from django.test.client import _MonkeyPatchedWSGIResponse as Answer


class ApiClient:
    """Speaks JSON to /api/v1 with a bearer token, or anonymously with ``secret=None``."""

    def __init__(self, secret: str | None, *, base: str = "/api/v1/") -> None:
        self.base = base
        self.headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        self.http = Client()

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Any method; ``path`` is relative to the base or absolute."""
        url = path if path.startswith("/") else self.base + path
        content = {} if body is None else {"data": body, "content_type": "application/json"}
        call = getattr(self.http, method.lower())
        response: Answer = call(url, headers={**self.headers, **headers}, **content)
        return response

    def get(self, path: str, **headers: str) -> Answer:
        """GET."""
        return self.send("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        """POST with a JSON body."""
        return self.send("POST", path, {} if body is None else body, **headers)

    def delete(self, path: str, **headers: str) -> Answer:
        """DELETE."""
        return self.send("DELETE", path, **headers)
