"""Serializers that refuse what they do not know.

A misspelt field would otherwise be dropped in silence, and the caller would believe
that it had been kept.
"""

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers
from rest_framework.exceptions import ErrorDetail, ValidationError
from rest_framework.request import Request

from agentstate import codec

UNKNOWN_FIELD = "this call has no such field"


class StrictSerializer(serializers.Serializer[Any]):
    """A request body: an object that holds the fields named here and no others."""

    def to_internal_value(self, data: Any) -> Any:
        errors: dict[str, Any] = {}
        if isinstance(data, Mapping):
            known = {f.field_name for f in self._writable_fields}
            for name in data:
                if name not in known:
                    errors[name] = [ErrorDetail(UNKNOWN_FIELD, code="unknown_field")]
        try:
            value = super().to_internal_value(data)
        except ValidationError as exc:
            if isinstance(exc.detail, dict):
                exc.detail.update(errors)
            raise
        if errors:
            raise ValidationError(errors)
        return value


class JSONValueField(serializers.Field[Any, Any, Any, Any]):
    """Any JSON value, untouched: the codec has already read and judged it."""

    def to_internal_value(self, data: Any) -> Any:
        return data

    def to_representation(self, value: Any) -> Any:
        return value


class JSONObjectField(JSONValueField):
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


def read_as[T: serializers.Serializer[Any]](
    serializer: type[T], request: Request, **kwargs: Any
) -> dict[str, Any]:
    """Return the request's body as `serializer` reads it; raises ValidationError."""
    body = serializer(data=request.data, **kwargs)
    body.is_valid(raise_exception=True)
    validated: dict[str, Any] = body.validated_data
    return validated
