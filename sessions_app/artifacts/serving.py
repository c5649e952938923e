"""Giving the bytes of an artifact out over HTTP, so that nothing in them can run.

Whoever made the file, a browser gets it as an attachment, sandboxed, and under a type
that is not sniffed; a type that could run is given as plain octets.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    StreamingHttpResponse,
)
from django.http.response import HttpResponseNotModified
from django.utils.http import content_disposition_header

from agentstate.metrics import ARTIFACT_BYTES
from sessions_app.artifacts.content import MEDIA_TYPE, OCTETS
from sessions_app.artifacts.store import ObjectName, configured_store, reaching
from sessions_app.errors import (
    ArtifactNotFound,
    ContentMissing,
    RangeNotSatisfiable,
    StorageUnavailable,
)
from sessions_app.models import Artifact

RANGE = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})\Z")
# Types that no browser runs. Everything else leaves here as octets.
INERT = re.compile(
    r"(text/(plain|csv|markdown)|application/(json|pdf|zip|gzip|x-ndjson|x-tar)"
    r"|image/(png|jpeg|gif|webp|avif|bmp)|(audio|video)/[a-z0-9.+-]+)\Z",
    re.IGNORECASE,
)
READABLE = {"application/json", "application/x-ndjson", "application/xml"}
SANDBOX = "default-src 'none'; frame-ancestors 'none'; sandbox"


class Span(NamedTuple):
    start: int
    length: int


class ContentResponse(StreamingHttpResponse):
    """A stream that needs no database: `detach` hands it over to the server's loop."""

    def __init__(self, parts: Iterator[bytes], **options: object) -> None:
        super().__init__(parts, **options)
        self._parts = parts

    def detach(self) -> Iterator[bytes]:
        """Return the stream; closing the response no longer ends it."""
        self._resource_closers.clear()  # type: ignore[attr-defined]
        return self._parts


def content_response(request: HttpRequest, artifact: Artifact) -> HttpResponseBase:
    """Answer a GET or HEAD for the bytes: 200, 206 or 304.

    Raises RangeNotSatisfiable, StorageUnavailable, ContentMissing.
    """
    tag = f'"{artifact.sha256}"'
    if _matches(request.headers.get("If-None-Match", ""), tag):
        return _with_headers(HttpResponseNotModified(), artifact, tag)
    span = read_range(request.headers.get("Range"), artifact.size)
    if span is not None and request.headers.get("If-Range", tag).strip() != tag:
        span = None
    wanted = span or Span(0, artifact.size)
    response: HttpResponseBase
    if request.method == "HEAD":
        response = HttpResponse()
    else:
        response = ContentResponse(open_content(artifact, span))
    response.status_code = 206 if span else 200
    response["Content-Length"] = str(wanted.length)
    if span:
        last = span.start + span.length - 1
        response["Content-Range"] = f"bytes {span.start}-{last}/{artifact.size}"
    return _with_headers(response, artifact, tag)


def _with_headers[R: HttpResponseBase](response: R, artifact: Artifact, tag: str) -> R:
    response["ETag"] = tag
    response["Accept-Ranges"] = "bytes"
    response["Content-Type"] = safe_type(artifact.media_type)
    response["Content-Disposition"] = disposition(artifact)
    response["X-Content-Type-Options"] = "nosniff"
    response["Content-Security-Policy"] = SANDBOX
    response["Cross-Origin-Resource-Policy"] = "same-origin"
    response["Cache-Control"] = "private, no-cache"
    return response


def safe_type(media_type: str) -> str:
    """Return the type to give out: what could run in a browser becomes octets."""
    kind = media_type.partition(";")[0].strip()
    is_given_out = INERT.match(kind) and MEDIA_TYPE.match(media_type)
    return media_type if is_given_out else OCTETS


def disposition(artifact: Artifact) -> str:
    header = content_disposition_header(True, artifact.name or str(artifact.pk))
    assert header is not None
    return header


def _matches(header: str, tag: str) -> bool:
    tags = [each.strip().removeprefix("W/") for each in header.split(",")]
    return tag in tags or tags == ["*"]


def read_range(header: str | None, size: int) -> Span | None:
    """Return the one span that the header asks for; None for all of it.

    What is no single range of bytes is no range, as RFC 9110 has it. Raises
    RangeNotSatisfiable.
    """
    found = RANGE.match(header.strip()) if header else None
    if found is None or not (found[1] or found[2]):
        return None
    if found[1]:
        start = int(found[1])
        last = min(int(found[2]) if found[2] else size - 1, size - 1)
        if found[2] and int(found[2]) < start:
            return None
    else:
        start, last = max(size - int(found[2]), 0), size - 1
    if start > last:
        raise RangeNotSatisfiable(
            headers={"Content-Range": f"bytes */{size}"}, size=size
        )
    return Span(start, last - start + 1)


def open_content(artifact: Artifact, span: Span | None = None) -> Iterator[bytes]:
    """Open the artifact's bytes, all or a span, and return them in parts.

    The whole is checked against its sha256, and cut short rather than ended when it
    differs. Raises StorageUnavailable, ContentMissing, ArtifactNotFound.
    """
    if artifact.blob is None:
        raise ArtifactNotFound
    name = ObjectName(artifact.project_id, artifact.blob.object_id)
    store = configured_store()
    whole = span is None
    start, length = span or Span(0, artifact.blob.size)
    with reaching(store, "read"):
        parts = store.read(name.path, start, length)
    return _checked(parts, artifact.blob.sha256 if whole else None)


def _checked(parts: Iterator[bytes], sha256: str | None) -> Iterator[bytes]:
    """Hold one part back until it is known that the bytes are the right ones."""
    digest, held = hashlib.sha256(), b""
    store = configured_store()
    try:
        with reaching(store, "read"):
            for part in parts:
                digest.update(part)
                if held:
                    ARTIFACT_BYTES.labels("out").inc(len(held))
                    yield held
                held = part
        if sha256 is not None and digest.hexdigest() != sha256:
            raise ContentMissing("The stored bytes are not those that were uploaded.")
        ARTIFACT_BYTES.labels("out").inc(len(held))
        yield held
    finally:
        close: Callable[[], None] | None = getattr(parts, "close", None)
        if close is not None:
            close()


def read_small(artifact: Artifact, limit: int) -> bytes | None:
    """Return the bytes of a small artifact; None if it is larger or cannot be read."""
    if artifact.size > limit:
        return None
    try:
        return b"".join(open_content(artifact))
    except (StorageUnavailable, ContentMissing):
        return None


def reads_as_text(media_type: str) -> bool:
    """Whether a person can read it as it is: shown as text, whatever it holds."""
    kind = media_type.partition(";")[0].strip().lower()
    return kind.startswith("text/") or kind in READABLE or kind.endswith("+json")
