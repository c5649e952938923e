"""Where the bytes of artifacts lie: objects, each written once and under its own name.

A store is a Django storage with the four operations of `Store` on top: the folder of
`disk.py`, or the bucket of `s3.py`. Names of objects are made here, of ids that the
server made, and of nothing that a client has sent.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple, Protocol, cast
from uuid import UUID

from django.core.files.storage import storages

from agentstate.metrics import STORE_FAILURES
from sessions_app.errors import ContentMissing, StorageUnavailable

logger = logging.getLogger(__name__)

CHUNK_BYTES = 256 * 1024


class ObjectName(NamedTuple):
    project_id: UUID
    object_id: UUID

    @property
    def path(self) -> str:
        # Two characters of the random end: no folder grows without bound.
        return f"{self.project_id}/{self.object_id.hex[-2:]}/{self.object_id}"


class Store(Protocol):
    """What a store does. Its own exceptions are those of `failures`."""

    failures: tuple[type[Exception], ...]

    def put(self, path: str, file: IO[bytes]) -> None:
        """Write an object, whole or not at all. `file` stands at its beginning."""

    def read(self, path: str, start: int, length: int) -> Iterator[bytes]:
        """Yield `length` bytes from `start`. FileNotFoundError if there is no object.

        The object has been opened when this returns; closing the iterator closes it.
        """

    def object_size(self, path: str) -> int | None:
        """The object's size; None if there is none."""

    def remove(self, path: str) -> None:
        """Remove the object and what a broken `put` may have left; gone is fine."""

    def link(
        self, path: str, *, seconds: int, disposition: str, media_type: str
    ) -> str | None:
        """An address at which anybody may read for a while; None if it has none."""


def configured_store() -> Store:
    return cast(Store, storages["artifacts"])


@contextmanager
def reaching(store: Store, operation: str) -> Iterator[None]:
    """Turn a store's own exceptions into ours, counted and logged."""
    try:
        yield
    except FileNotFoundError as exc:
        STORE_FAILURES.labels(operation).inc()
        logger.error("an object is missing in the store", exc_info=exc)
        raise ContentMissing from exc
    except store.failures as exc:
        STORE_FAILURES.labels(operation).inc()
        logger.warning(
            "the store of artifacts failed: %s",
            type(exc).__name__,
            extra={"operation": operation, "reason": str(exc)[:300]},
        )
        raise StorageUnavailable from exc
