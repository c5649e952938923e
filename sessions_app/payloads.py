"""Large payloads of events: in the store of artifacts, with a stub in the row.

A row whose `blob_id` is set holds a stub in place of its payload: how large it is, its
digest, and its beginning, which pages show. Whoever reads payloads goes through
`sessions_app.log` or `whole_texts`, which put the text back. What the server itself
appends, and what is appended inside a larger transaction, is written to the row, since
the store is not waited for while a row is locked; `sessions_app.moving` moves it later.
"""

import hashlib
import io
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol
from uuid import UUID

from django.conf import settings
from django.db import connection, transaction

from agentstate import codec
from sessions_app.artifacts.blobs import ContentGone, Placed, drop, hold, place
from sessions_app.artifacts.content import Content
from sessions_app.artifacts.store import (
    ObjectName,
    Store,
    configured_store,
    reaching,
)
from sessions_app.errors import ContentMissing, StorageUnavailable
from sessions_app.models import Blob, Event, Session

HEAD_CHARS = 1000
TRIES = 3
# A page may hold many; a bucket answers several at a time.
_readers = ThreadPoolExecutor(8, thread_name_prefix="payloads")
_at_hand: ContextVar[dict[UUID, str] | None] = ContextVar("at_hand", default=None)


class Appended(Protocol):
    """What an append returns."""

    @property
    def seqs(self) -> Sequence[int]: ...
    @property
    def is_replay(self) -> bool: ...


def is_large(text: str) -> bool:
    """Whether a payload's text is kept in the store."""
    limit: int = settings.PAYLOAD_INLINE_BYTES
    # A character has at most four bytes, so most texts need not be encoded for this.
    return len(text) * 4 > limit and len(text.encode()) > limit


def stub_of(content: Content, text: str, **kept: Any) -> str:
    """Return what stands in the row: the same for the same text.

    `kept` are members of the payload that SQL reads.
    """
    told = {"sha256": content.sha256, "bytes": content.size, "head": text[:HEAD_CHARS]}
    return codec.dumps(kept | {"$stored": told})


def is_stub_of(stub: str, text: str) -> bool:
    """Whether a stub stands for this very text."""
    told: Any = codec.loads(stub)
    return bool(told["$stored"]["sha256"] == hashlib.sha256(text.encode()).hexdigest())


class LargePayloads:
    """The large ones among the payloads of one append.

    A context: what was placed in the store and not recorded is removed at its end.
    """

    def __init__(self, project_id: UUID, session_id: UUID, texts: list[str]) -> None:
        self.project_id = project_id
        self.session_id = session_id
        self.contents = {i: content_of(t) for i, t in enumerate(texts) if is_large(t)}
        self.stubs = [
            stub_of(self.contents[i], text) if i in self.contents else text
            for i, text in enumerate(texts)
        ]
        self.placed: dict[int, Placed] = {}

    def __enter__(self) -> "LargePayloads":
        return self

    def __exit__(self, *exc: object) -> None:
        self._drop()

    def append[A: Appended](self, append: Callable[[], A]) -> A:
        """Place the payloads, then append the stubs and hold what they stand for.

        Raises StorageUnavailable, and what `append` raises; then nothing has changed.
        """
        for _ in range(TRIES):
            for index, content in self.contents.items():
                self.placed[index] = place(self.project_id, content)
            try:
                return self._append(append)
            except ContentGone:
                self._drop()
        raise StorageUnavailable

    @transaction.atomic
    def _append[A: Appended](self, append: Callable[[], A]) -> A:
        # The session first, as everywhere: then its blobs.
        rows = Session.objects.select_for_update(no_key=True).filter(
            project_id=self.project_id, id=self.session_id
        )
        last_seq = rows.values_list("last_seq", flat=True).first() or 0
        appended = append()
        if appended.is_replay:
            transaction.set_rollback(True)
            return appended
        # An event whose id was in the log already has its payload there.
        new = [i for i in self.contents if appended.seqs[i] > last_seq]
        new.sort(key=lambda i: self.contents[i].sha256)
        held = [hold(self.project_id, self.contents[i], self.placed[i]) for i in new]
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT agentstate_store_payloads("
                "%s, %s, %s::bigint[], %s::uuid[], %s::integer[])",
                [
                    self.project_id,
                    self.session_id,
                    [appended.seqs[i] for i in new],
                    held,
                    [self.contents[i].size for i in new],
                ],
            )
        return appended

    def _drop(self) -> None:
        for placed in self.placed.values():
            if placed.is_new:  # does nothing for one that was adopted
                drop(ObjectName(self.project_id, placed.object_id))
        self.placed = {}


def content_of(text: str) -> Content:
    raw = text.encode()
    return Content(io.BytesIO(raw), len(raw), hashlib.sha256(raw).hexdigest())


@contextmanager
def kept_at_hand() -> Iterator[None]:
    """Within this, what was read from the store is not read from there again.

    To look ahead: a payload that is read before a row is locked is had at once while it
    is. A blob never changes; whether an event still holds it, its row says.
    """
    if _at_hand.get() is not None:
        yield
        return
    token = _at_hand.set({})
    try:
        yield
    finally:
        _at_hand.reset(token)


def stored_texts(project_id: UUID, blob_ids: Collection[UUID]) -> dict[UUID, str]:
    """Return the payloads that blobs hold, of those that are there.

    Raises StorageUnavailable, ContentMissing.
    """
    if not blob_ids:
        return {}
    blobs = Blob.objects.filter(project_id=project_id, id__in=set(blob_ids))
    store = configured_store()
    known = _at_hand.get()
    there = list(blobs.only("id", "project_id", "object_id", "size", "sha256"))
    texts = {blob.pk: known[blob.pk] for blob in there if known and blob.pk in known}
    wanted = [blob for blob in there if blob.pk not in texts]
    if len(wanted) == 1:
        found: Iterable[str] = [_read(store, wanted[0])]
    else:
        found = _readers.map(lambda blob: _read(store, blob), wanted)
    texts |= {blob.pk: text for blob, text in zip(wanted, found, strict=True)}
    if known is not None:
        known |= texts
    return texts


def _read(store: Store, blob: Blob) -> str:
    path = ObjectName(blob.project_id, blob.object_id).path
    with reaching(store, "read"):
        raw = b"".join(store.read(path, 0, blob.size))
    if hashlib.sha256(raw).hexdigest() != blob.sha256:
        raise ContentMissing("The stored payload is not the one that was appended.")
    return raw.decode()


def whole_texts(project_id: UUID, rows: Iterable[tuple[str, UUID | None]]) -> list[str]:
    """Return payloads' texts: those of the rows, or what their stubs stand for.

    `rows` as of `EventQuerySet.stored_text`. Raises StorageUnavailable, ContentMissing.
    """
    rows = list(rows)
    texts = stored_texts(project_id, {blob_id for _, blob_id in rows if blob_id})
    if any(blob_id and blob_id not in texts for _, blob_id in rows):
        raise ContentMissing
    return [texts[blob_id] if blob_id else text for text, blob_id in rows]


def text_of(project_id: UUID, text: str, blob_id: UUID | None) -> str:
    """Return a payload's text: that of the row, or what its stub stands for."""
    return whole_texts(project_id, [(text, blob_id)])[0]


def holds(text: str, words: str) -> bool:
    """Whether a payload's JSON text holds `words`, as `EventQuerySet.containing`."""
    return codec.dumps(words)[1:-1].lower() in text.lower()


def blobs_of(
    project_id: UUID, session_ids: Iterable[UUID], **narrow: Any
) -> list[UUID]:
    """The blobs that events of these sessions hold, once for each event."""
    found = Event.objects.filter(
        project_id=project_id,
        session_id__in=list(session_ids),
        blob_id__isnull=False,
        **narrow,
    )
    return [blob for blob in found.values_list("blob_id", flat=True) if blob]
