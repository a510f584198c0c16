"""Bases for what the API reads and writes. In and Out serializers differ: an In lists what a caller may say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers


class StrictSerializer(serializers.Serializer[Any]):
    """Input: a field that is not listed is refused by name, so a typo or a wish for more than is offered is noticed."""

    def to_internal_value(self, data: Any) -> Any:
        """Parsed values; ValidationError names unknown fields beside whatever else is wrong."""
        if not isinstance(data, Mapping):
            return super().to_internal_value(data)  # DRF says what was expected
        writable = {name for name, field in self.fields.items() if not field.read_only}
        unknown = {str(name): ["There is no such field."] for name in data if name not in writable}
        try:
            values = super().to_internal_value(data)
        except serializers.ValidationError as error:
            detail = error.detail if isinstance(error.detail, dict) else {"body": error.detail}
            raise serializers.ValidationError({**detail, **unknown}) from error
        if unknown:
            raise serializers.ValidationError(unknown)
        return values


class StrictCharField(serializers.CharField):
    """Text that must be sent as text: DRF's own field turns numbers into strings."""

    def to_internal_value(self, data: Any) -> str:
        """The text; ValidationError for anything else."""
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)
