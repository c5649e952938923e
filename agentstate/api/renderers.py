"""Answers leave through the same codec that requests came in by."""

from collections.abc import Mapping
from typing import Any

from rest_framework.renderers import BaseRenderer

from agentstate import codec


class JSONRenderer(BaseRenderer):
    """Writes JSON by `codec.dumps`.

    A `codec.RawJSON` anywhere in the data goes out as the text it holds, so that stored
    payloads are passed on without being decoded.
    """

    media_type = "application/json"
    format = "json"
    charset = None  # JSON is UTF-8; the media type has no charset parameter

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        return render_json(data).encode()


def render_json(data: Any) -> str:
    """Return `data` as JSON text; None, which stands for no body, as the empty text."""
    if data is None:
        return ""
    if isinstance(data, codec.RawJSON):
        text: str = data.encoded_json
        return text
    return codec.dumps(data)
