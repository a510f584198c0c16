"""How bodies of the API are read."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

from django.conf import settings
from rest_framework.parsers import JSONParser

from portal.errors import TooLarge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rest_framework.request import Request


class LimitedJson(JSONParser):
    """JSON up to DATA_UPLOAD_MAX_MEMORY_SIZE. Django enforces that limit for forms; DRF reads the stream past it."""

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The parsed body; TooLarge before a byte of a too large one is read."""
        request: Request | None = (parser_context or {}).get("request")
        length = int(request.META.get("CONTENT_LENGTH") or 0) if request is not None else 0
        if length > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            raise TooLarge(f"A request may have {settings.DATA_UPLOAD_MAX_MEMORY_SIZE} bytes, this one has {length}.")
        body: dict[str, Any] = super().parse(stream, media_type, parser_context)
        return body
