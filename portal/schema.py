"""The OpenAPI 3.1 document of /api/v1: scopes, bearer tokens and problem documents, told once for every route."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from drf_spectacular.openapi import AutoSchema

from portal.permissions import ANYONE, PUBLIC

if TYPE_CHECKING:
    from collections.abc import Sequence

PREFIX = "/api/v1/"
# The session of the pages is left out: it is not meant for programs.
TOKEN = {"type": "http", "scheme": "bearer", "bearerFormat": "lsr_…", "description": "An API token."}
PROBLEM = {
    "type": "object",
    "description": "RFC 9457. `code` is stable and meant for programs, `detail` for people.",
    "required": ["type", "title", "status", "code", "detail"],
    "properties": {
        "type": {"type": "string", "examples": ["urn:lessor:problem:no_capacity"]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string"},
        "detail": {"type": "string"},
        "errors": {
            "type": "object",
            "description": "Field name → sentences. Nested fields are joined by dots.",
            "additionalProperties": {"type": "array", "items": {"type": "string"}},
        },
    },
    "additionalProperties": True,
}


class Schema(AutoSchema):
    """One view's part of the document."""

    def get_auth(self) -> list[dict[str, Any]]:
        """Bearer with the scope as its role (OpenAPI 3.1 allows that); nothing for a public route."""
        scope = self._scope()
        if scope == PUBLIC:
            return [{}]
        return [{"token": [] if scope in {ANYONE, ""} else [scope]}]

    def get_description(self) -> str:  # type: ignore[override]  # the generator narrows DRF's own signature
        """The docstring and the scope."""
        text: str = super().get_description()
        scope = self._scope()
        return text if scope in {PUBLIC, ANYONE, ""} else f"{text}\n\nScope: `{scope}`".strip()

    def _scope(self) -> str:
        table: dict[str, str] = getattr(self.view, "scopes", {})
        return table.get(self.method, "")


def only_v1(endpoints: Sequence[tuple[str, str, str, Any]]) -> list[tuple[str, str, str, Any]]:
    """Pre-processing hook: leave out the node API and everything else that is not /api/v1/."""
    return [endpoint for endpoint in endpoints if endpoint[0].startswith(PREFIX)]


def add_problems(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:  # noqa: FBT001  # the hook's signature
    """Post-processing hook: the token scheme, and that every operation may answer a problem."""
    components = result.setdefault("components", {})
    components["securitySchemes"] = {"token": TOKEN}
    components.setdefault("schemas", {})["Problem"] = PROBLEM
    answer = {
        "description": "A refusal.",
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for operations in result.get("paths", {}).values():
        for operation in operations.values():
            if isinstance(operation, dict) and "responses" in operation:
                operation["responses"]["default"] = answer
    return result
