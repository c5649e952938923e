"""What drf-spectacular cannot see by itself."""

from typing import Any

from drf_spectacular.extensions import (
    OpenApiAuthenticationExtension,
    OpenApiSerializerExtension,
)


class ApiKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "access_app.api.authentication.ApiKeyAuth"
    name = ["bearerKey", "headerKey"]

    def get_security_requirement(self, auto_schema: Any) -> list[dict[str, list[Any]]]:
        # Alternatives: in one object they would be needed both.
        return [{name: []} for name in self.name]

    def get_security_definition(self, auto_schema: Any) -> list[dict[str, str]]:
        return [
            {"type": "http", "scheme": "bearer", "description": "An API key."},
            {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        ]


class StrictObject(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    target_class = "agentstate.api.serializers.StrictSerializer"
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: Any) -> dict[str, Any]:
        schema: dict[str, Any] = auto_schema._map_serializer(
            self.target, direction, bypass_extensions=True
        )
        if self.target.__class__.__doc__ is None:
            schema.pop("description", None)  # inherited, it says nothing about this one
        return schema | {"additionalProperties": False}
