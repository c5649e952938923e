"""Artifacts in a folder: the default."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from django.core.files.storage import FileSystemStorage

from sessions_app.artifacts.store import CHUNK_BYTES

PART = ".part"  # of a file that is still being written


class FolderStore(FileSystemStorage):
    """Objects as files that their owner alone may read."""

    failures: tuple[type[Exception], ...] = (OSError,)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)

    def put(self, path: str, file: IO[bytes]) -> None:
        """As Store.put: under another name first, and on the disk when this returns."""
        target = Path(self.path(path))
        part = target.with_name(target.name + PART)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with open(os.open(part, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as out:
                shutil.copyfileobj(file, out, CHUNK_BYTES)
                out.flush()
                os.fsync(out.fileno())
            os.replace(part, target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)

    def read(self, path: str, start: int, length: int) -> Iterator[bytes]:
        return _read(open(self.path(path), "rb"), start, length)  # noqa: SIM115

    def object_size(self, path: str) -> int | None:
        try:
            return os.stat(self.path(path)).st_size
        except FileNotFoundError:
            return None

    def remove(self, path: str) -> None:
        target = Path(self.path(path))
        for each in (target, target.with_name(target.name + PART)):
            each.unlink(missing_ok=True)

    def link(
        self, path: str, *, seconds: int, disposition: str, media_type: str
    ) -> str | None:
        return None


def _read(file: IO[bytes], start: int, length: int) -> Iterator[bytes]:
    with file:
        file.seek(start)
        while length > 0:
            part = file.read(min(CHUNK_BYTES, length))
            if not part:
                raise OSError("the file is shorter than it was")
            length -= len(part)
            yield part


def _sync_folder(folder: Path) -> None:
    """Have the new name on the disk too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
