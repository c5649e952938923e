"""Serializers that refuse what they do not know.

A misspelt field would otherwise be dropped in silence, and the caller would believe
that it had been kept.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django.utils.dateparse import parse_datetime
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail, ValidationError
from rest_framework.request import Request

from agentstate import codec

UNKNOWN_FIELD = "this call has no such field"


# DRF reads "5" as 5 and 5 as "5", as HTML forms need it. JSON has types of its own.
JSON_TYPES: list[tuple[type[serializers.Field[Any, Any, Any, Any]], str, Any]] = [
    (serializers.BooleanField, "true or false", bool),
    (serializers.IntegerField, "a whole number", (int, Decimal)),
    (serializers.FloatField, "a number", (int, Decimal)),
    (serializers.CharField, "a string", str),
    (serializers.ChoiceField, "a string", str),
    (serializers.UUIDField, "a string", str),
    (serializers.DateTimeField, "a string", str),
]


class StrictSerializer(serializers.Serializer[Any]):
    """A request body: an object that holds the fields named here and no others.

    Each has the JSON type it is declared with; nothing is read as what it is not.
    """

    def to_internal_value(self, data: Any) -> Any:
        errors = self._strict_errors(data) if isinstance(data, Mapping) else {}
        try:
            value = super().to_internal_value(data)
        except ValidationError as exc:
            if isinstance(exc.detail, dict):
                exc.detail.update(errors)
            raise
        if errors:
            raise ValidationError(errors)
        return value

    def _strict_errors(self, data: Mapping[str, Any]) -> dict[str, Any]:
        fields = {str(f.field_name): f for f in self._writable_fields}
        errors: dict[str, Any] = {}
        for name, value in data.items():
            if name not in fields:
                errors[name] = [ErrorDetail(UNKNOWN_FIELD, code="unknown_field")]
            elif error := _type_error(fields[name], value):
                errors[name] = error
        return errors


def _type_error(field: Any, value: Any) -> Any:
    """DRF's error details for a value of the wrong JSON type; None if it is right."""
    if value is None:
        return None  # whether null is allowed, the field says itself
    if isinstance(field, serializers.ListField) and isinstance(value, list):
        found = {i: _type_error(field.child, item) for i, item in enumerate(value)}
        return {i: error for i, error in found.items() if error} or None
    for kind, name, types in JSON_TYPES:
        if isinstance(field, kind):
            is_right = isinstance(value, types) and (
                types is bool or not isinstance(value, bool)
            )
            detail = ErrorDetail(f"this must be {name}", code="wrong_type")
            return None if is_right else [detail]
    return None


class StringField(serializers.CharField):
    """Text as it was sent: not made of a number, not trimmed, without U+0000."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("trim_whitespace", False)
        super().__init__(**kwargs)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return super().to_internal_value(data)


class InstantField(serializers.DateTimeField):
    """A point in time. One without an offset is refused: whose time would it be?"""

    default_error_messages = {
        "needs_offset": "this needs a time zone, such as 2026-03-01T10:00:00Z",
        "out_of_range": "this is not between the years 1 and 9999 in UTC",
    }

    def to_internal_value(self, value: Any) -> datetime:
        if not isinstance(value, str):
            self.fail("invalid", format="ISO 8601")
        try:
            parsed = parse_datetime(value)
        except ValueError:
            parsed = None
        if parsed is None:
            self.fail("invalid", format="ISO 8601")
        if parsed.tzinfo is None:
            self.fail("needs_offset")
        try:
            return parsed.astimezone(UTC)
        except OverflowError:
            self.fail("out_of_range")


@extend_schema_field({})
class JSONValueField(serializers.Field[Any, Any, Any, Any]):
    """Any JSON value, untouched: the codec has already read and judged it.

    Null is a value like any other, without `allow_null`.
    """

    def validate_empty_values(self, data: Any) -> tuple[bool, Any]:
        return (True, None) if data is None else super().validate_empty_values(data)

    def to_internal_value(self, data: Any) -> Any:
        return data

    def to_representation(self, value: Any) -> Any:
        return value


@extend_schema_field({"type": "object", "additionalProperties": True})
class JSONObjectField(serializers.Field[Any, Any, Any, Any]):
    """A JSON object, untouched. `max_bytes` limits its length as JSON text."""

    default_error_messages = {
        "not_an_object": "this must be an object",
        "too_large": "this is larger than {max_bytes} bytes as JSON",
    }

    def __init__(self, *, max_bytes: int | None = None, **kwargs: Any) -> None:
        self.max_bytes = max_bytes
        super().__init__(**kwargs)

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, dict):
            self.fail("not_an_object")
        if self.max_bytes and len(codec.dumps(data).encode()) > self.max_bytes:
            self.fail("too_large", max_bytes=self.max_bytes)
        return data

    def to_representation(self, value: Any) -> Any:
        return value


def read_as[T: serializers.Serializer[Any]](
    serializer: type[T], request: Request, **kwargs: Any
) -> dict[str, Any]:
    """Return the request's body as `serializer` reads it; raises ValidationError."""
    body = serializer(data=request.data, **kwargs)
    body.is_valid(raise_exception=True)
    validated: dict[str, Any] = body.validated_data
    return validated
