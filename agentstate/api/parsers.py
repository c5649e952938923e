"""Requests come in through one door: size, media type, then the codec."""

from collections.abc import Mapping
from typing import IO, Any

from django.conf import settings
from django.http import HttpRequest, UnreadablePostError
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from agentstate import codec
from agentstate.errors import AppError


class BodyTooLarge(AppError):
    """The body is larger than this server takes in one request."""

    code, status = "body_too_large", 413


class LengthRequired(AppError):
    """Send a Content-Length: a body without a known length is not read."""

    code, status = "length_required", 411


class IncompleteBody(AppError):
    """The body ended before its announced length."""

    code, status = "incomplete_body", 400


class EmptyBody(AppError):
    """The body is blank. Send JSON, or no body at all."""

    code, status = "empty_body", 400


class JSONParser(BaseParser):
    """Reads JSON by `codec.loads`, from a body that `read_body` has let in."""

    media_type = "application/json"

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        request = (parser_context or {}).get("request")
        raw = read_body(request) if isinstance(request, Request) else stream.read()
        if not raw.strip():
            raise EmptyBody
        return codec.loads(raw)


def read_body(request: Request | HttpRequest) -> bytes:
    """Return the raw body, at most settings.REQUEST_MAX_BYTES of it.

    Reading twice is free: Django keeps the bytes.
    """
    http = request._request if isinstance(request, Request) else request
    check_length(http)
    try:
        body: bytes = http.body
    except UnreadablePostError as exc:
        raise IncompleteBody from exc
    if len(body) < declared_length(http):
        raise IncompleteBody
    return body


def check_length(http: HttpRequest) -> None:
    """Refuse, unread, a body too large (413) or of unknown length (411)."""
    encoding = http.META.get("HTTP_TRANSFER_ENCODING", "").lower()
    if "chunked" in encoding and not http.META.get("CONTENT_LENGTH"):
        # WSGI hands such a body over as empty, and an empty write must not succeed.
        raise LengthRequired
    limit = settings.REQUEST_MAX_BYTES
    if declared_length(http) > limit:
        raise BodyTooLarge(limit_bytes=limit)


def declared_length(http: HttpRequest) -> int:
    try:
        return int(http.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return 0
