"""Uploads larger than any other body: asked first, then taken.

The server keeps a whole body on disk before a view sees it. So that nobody fills the
disk who may not upload at all, the view is asked first, with the headers alone, and its
refusal is given without reading the body.
"""

from django.conf import settings

from agentstate.bridge import (
    Message,
    Receive,
    Scope,
    Send,
    WSGIBridge,
    content_length,
    refuse_body,
)
from sessions_app.api.artifacts import ASKED_ENVIRON

MAY = 204


async def upload_app(
    scope: Scope, receive: Receive, send: Send, http: WSGIBridge
) -> None:
    """Answer one upload of an artifact."""
    size = content_length(scope)
    limit = settings.ARTIFACT_MAX_BYTES
    if size is None or size > http.max_body_bytes:
        start, content = await _ask(scope, http, size)
        if start["status"] != MAY:
            await refuse_body(receive, send, start, content, limit)
            return
    await http(scope, receive, send, max_body_bytes=max(limit, http.max_body_bytes))


async def _ask(
    scope: Scope, http: WSGIBridge, size: int | None
) -> tuple[Message, Message]:
    """Put the request to its view without its body; the answer's two messages."""
    headers = [(n, v) for n, v in scope["headers"] if n != b"content-length"]
    asked = {**scope, "headers": headers, ASKED_ENVIRON: size or 0}
    answer: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def keep(message: Message) -> None:
        answer.append(message)

    await http(asked, receive, keep)
    body = b"".join(message.get("body", b"") for message in answer[1:])
    return answer[0], {"type": "http.response.body", "body": body}
