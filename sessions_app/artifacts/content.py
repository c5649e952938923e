"""What is uploaded, before it is stored: its bytes with their digest, and its name."""

import hashlib
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple, Protocol

from django.conf import settings

from agentstate.api.parsers import IncompleteBody
from agentstate.errors import FieldError
from sessions_app.artifacts.store import CHUNK_BYTES
from sessions_app.errors import ArtifactTooLarge, DigestMismatch, StorageUnavailable

NAME_MAX = 255
MEDIA_TYPE_MAX = 255
MEMORY_BYTES = 1024 * 1024  # more of a body waits on disk
OCTETS = "application/octet-stream"

# A type, and parameters such as charset=utf-8: printable characters alone.
MEDIA_TYPE = re.compile(
    r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}"
    r"(?:[ \t]*;[ \t]*(?:[A-Za-z0-9!#$&^_.+-]+=[\x20-\x7e]+)?)?\Z"
)
SHA256 = re.compile(r"[0-9a-f]{64}\Z")
# Control characters, and those that turn the direction of what is shown after them.
UNSHOWABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Content(NamedTuple):
    """Bytes to store: a file that can be read again and again."""

    file: IO[bytes]
    size: int
    sha256: str


@contextmanager
def received(
    source: Readable, *, announced: int | None, limit: int | None = None
) -> Iterator[Content]:
    """Read all of `source`, at most `limit` bytes, and yield it with its digest.

    A source that can be read twice is not copied. Raises ArtifactTooLarge, or
    IncompleteBody if fewer bytes came than were `announced`.
    """
    limit = settings.ARTIFACT_MAX_BYTES if limit is None else limit
    check_size(announced, limit)
    if _is_seekable(source):
        yield _measured(source, announced, limit)  # type: ignore[arg-type]
        return
    settings.UPLOAD_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.SpooledTemporaryFile(
        MEMORY_BYTES, dir=str(settings.UPLOAD_DIR)
    ) as file:
        try:
            _copy(source, file, limit)
        except OSError as exc:
            raise StorageUnavailable from exc
        yield _measured(file, announced, limit)


def check_size(size: int | None, limit: int) -> None:
    if size is not None and size > limit:
        raise ArtifactTooLarge(limit_bytes=limit)


def _is_seekable(source: Readable) -> bool:
    seekable = getattr(source, "seekable", None)
    return bool(seekable and seekable())


def _copy(source: Readable, file: IO[bytes], limit: int) -> None:
    size = 0
    while part := source.read(CHUNK_BYTES):
        size += len(part)
        check_size(size, limit)
        file.write(part)


def _measured(file: IO[bytes], announced: int | None, limit: int) -> Content:
    file.seek(0)
    digest, size = hashlib.sha256(), 0
    while part := file.read(CHUNK_BYTES):
        size += len(part)
        digest.update(part)
    check_size(size, limit)
    if announced is not None and size < announced:
        raise IncompleteBody
    file.seek(0)
    return Content(file, size, digest.hexdigest())


def check_name(name: str, path: str = "name") -> str:
    """Return a name that is one: no path, nothing that cannot be seen.

    It is never a part of a path of ours, but others save files under it.
    """
    if not 1 <= len(name) <= NAME_MAX or not name.strip():
        raise FieldError(path, "bad_name", f"a name has 1 to {NAME_MAX} characters")
    if name in (".", "..") or "/" in name or "\\" in name:
        raise FieldError(path, "bad_name", "a name is no path: no / and no \\")
    if not any(char.isprintable() and char != " " for char in name):
        raise FieldError(path, "bad_name", "nothing of this name can be seen")
    if UNSHOWABLE.search(name):
        raise FieldError(path, "bad_name", "a name has no control characters")
    return name


def check_media_type(media_type: str, path: str = "media_type") -> str:
    """Return the media type, or application/octet-stream for none."""
    if not media_type:
        return OCTETS
    if len(media_type) > MEDIA_TYPE_MAX or not MEDIA_TYPE.match(media_type):
        raise FieldError(path, "bad_media_type", "must be a media type: text/csv")
    return media_type


def check_sha256(expected: str | None, content: Content) -> None:
    """Raise DigestMismatch unless the bytes are those that the client meant."""
    if expected is None:
        return
    if not SHA256.match(expected):
        raise FieldError("sha256", "bad_sha256", "must be 64 lower-case hex digits")
    if expected != content.sha256:
        raise DigestMismatch(expected=expected, actual=content.sha256)
