"""What drf-spectacular cannot see by itself: how a key is sent."""

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension


class ApiKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "access_app.api.authentication.ApiKeyAuth"
    name = ["bearerKey", "headerKey"]

    def get_security_definition(self, auto_schema: Any) -> list[dict[str, str]]:
        return [
            {"type": "http", "scheme": "bearer", "description": "An API key."},
            {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        ]
