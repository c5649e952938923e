"""The bytes of an upload: sent in parts, and again from the beginning if need be."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from typing import IO, Any

PART_BYTES = 256 * 1024

Source = bytes | str | os.PathLike[str] | IO[bytes]


class Body:
    """A file to send. `sha256` is that of the bytes last sent whole."""

    def __init__(self, source: Source) -> None:
        if isinstance(source, io.TextIOBase):
            raise TypeError("Open the file in binary mode: what is sent are bytes")
        self.name = _name_of(source)
        self.sha256 = ""
        self._file, self._is_ours = _opened(source)
        self._start = self._file.tell()
        self.size = self._file.seek(0, os.SEEK_END) - self._start

    def parts(self) -> Iterator[bytes]:
        """Yield the bytes from the beginning."""
        self._file.seek(self._start)
        digest = hashlib.sha256()
        while part := self._file.read(PART_BYTES):
            digest.update(part)
            yield part
        self.sha256 = digest.hexdigest()

    async def parts_async(self) -> AsyncIterator[bytes]:
        """As `parts`, reading in a thread."""
        parts = self.parts()
        while part := await asyncio.to_thread(next, parts, b""):
            yield part

    def close(self) -> None:
        """Close the file, if it was opened here."""
        if self._is_ours:
            self._file.close()


def _name_of(source: Source) -> str:
    if isinstance(source, (str, os.PathLike)):
        return os.path.basename(os.fspath(source))
    name: Any = getattr(source, "name", "")
    return os.path.basename(name) if isinstance(name, str) else ""


def _opened(source: Source) -> tuple[IO[bytes], bool]:
    """Return a file that can be read again, and whether it is ours to close."""
    if isinstance(source, bytes):
        return io.BytesIO(source), True
    if isinstance(source, (str, os.PathLike)):
        return open(source, "rb"), True
    if source.seekable():
        return source, False
    # A pipe cannot be sent twice, and a retry must repeat the same bytes.
    copy = tempfile.TemporaryFile()  # noqa: SIM115
    shutil.copyfileobj(source, copy, PART_BYTES)
    copy.seek(0)
    return copy, True
