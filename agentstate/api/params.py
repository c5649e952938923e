"""Query parameters: read by a serializer, and refused when nobody asked for them."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request

from agentstate.errors import AppError


class UnknownParameter(AppError):
    """This call has no such query parameter."""

    code, status = "unknown_parameter", 422


class RepeatedParameter(AppError):
    """This query parameter may be given once."""

    code, status = "repeated_parameter", 422


class Params(serializers.Serializer[Any]):
    """The query parameters of a call. A ListField may be repeated, others may not."""


class PageParams(Params):
    """What every list takes."""

    cursor = serializers.CharField(
        required=False, help_text="The `next` of the page before."
    )
    limit = serializers.IntegerField(
        required=False, default=100, min_value=1, max_value=1000
    )


@extend_schema_field({"type": "string"})
class CommaListField(serializers.Field[Any, Any, Any, Any]):
    """`types=a,b` as `["a", "b"]`."""

    def to_internal_value(self, data: Any) -> list[str]:
        text = serializers.CharField().run_validation(data)
        return [item for item in (part.strip() for part in text.split(",")) if item]

    def to_representation(self, value: Any) -> str:
        return ",".join(value)


def read_params(request: Request, params: type[Params] = Params) -> dict[str, Any]:
    """Return the query as `params` reads it.

    Raises UnknownParameter, RepeatedParameter or DRF's ValidationError, all 422.
    """
    serializer = params()
    query = request.query_params
    given: dict[str, Any] = {}
    for name in query:
        field = serializer.fields.get(name)
        if field is None:
            raise UnknownParameter(**_error(name, "unknown_parameter"))
        values = query.getlist(name)
        if isinstance(field, serializers.ListField):
            given[name] = values
        elif len(values) > 1:
            raise RepeatedParameter(**_error(name, "repeated_parameter"))
        else:
            given[name] = values[0]
    bound = params(data=given)
    bound.is_valid(raise_exception=True)
    validated: dict[str, Any] = bound.validated_data
    return validated


def _error(name: str, code: str) -> dict[str, Any]:
    detail = f"the query parameter {name!r} is not taken here"
    if code == "repeated_parameter":
        detail = f"the query parameter {name!r} stands here more than once"
    return {
        "detail": detail,
        "errors": [{"path": name, "code": code, "detail": detail}],
    }
