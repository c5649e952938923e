"""A session's log as pages show it: heads of payloads, cut in the database.

A page of events costs what it shows, not what the payloads weigh; a whole payload is
fetched when somebody opens it.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection
from django.db.models import Case, F, Func, TextField, Value, When
from django.db.models.functions import Cast, Left

from agentstate import codec
from agentstate.errors import AppError
from sessions_app import event_types as types
from sessions_app.log import segments_of
from sessions_app.models import Session
from sessions_app.payloads import holds, stored_texts
from sessions_app.querysets import EventQuerySet

HEAD_CHARS = 1000
TEXT_CHARS = 400
# The head of a larger payload would cost reading it whole: its size says enough.
HEAD_PAYLOAD_BYTES = 4 * 1024 * 1024
PREVIEW_CHARS = 300

CONTENT_STRING = re.compile(r'"content":"((?:[^"\\]|\\.)*)')


class OutlineEvent(NamedTuple):
    """One event without the bulk of its payload; `head` is the start of its JSON."""

    seq: int
    event_id: UUID
    type: str
    head: str
    payload_bytes: int
    run_id: UUID | None
    step_id: UUID | None
    actor: str
    occurred_at: datetime | None
    created_at: datetime

    @property
    def is_cut(self) -> bool:
        return len(self.head.encode()) < self.payload_bytes

    @property
    def payload(self) -> Any:
        """The payload, if it is here whole; None when it is cut."""
        return None if self.is_cut else codec.loads(self.head, max_depth=10_000)

    @property
    def summary(self) -> "Summary":
        return summarize(self.type, self.head, self.is_cut)


class OutlinePage(NamedTuple):
    """Events in ascending order, and whether there are more on either side."""

    events: list[OutlineEvent]
    has_earlier: bool
    has_later: bool


class Summary(NamedTuple):
    """A line about an event. `note` says that it is not what its type promises."""

    text: str
    is_error: bool = False
    note: str = ""


class StoredHead(Func):
    """The beginning of a payload that lies in the store: its stub has it."""

    template = "(%(expressions)s #>> '{$stored,head}')"
    output_field = TextField()


COLUMNS = (
    "seq",
    "event_id",
    "type",
    Case(
        When(blob_id__isnull=False, then=StoredHead("payload")),
        When(
            payload_bytes__lte=HEAD_PAYLOAD_BYTES,
            then=Left(Cast(F("payload"), TextField()), HEAD_CHARS),
        ),
        default=Value(""),
        output_field=TextField(),
    ),
    "payload_bytes",
    "run_id",
    "step_id",
    "actor",
    "occurred_at",
    "created_at",
)


def read_outline(
    session: Session,
    *,
    after_seq: int = -1,
    before_seq: int | None = None,
    wanted_types: Sequence[str] = (),
    contains: str = "",
    limit: int = 100,
    newest: bool = False,
) -> OutlinePage:
    """Return at most `limit` events with `after_seq` < seq < `before_seq`, ascending.

    The first of them, or with `newest` the last of them.
    """
    found: list[OutlineEvent] = []
    segments = segments_of(session)
    for segment in reversed(segments) if newest else segments:
        if len(found) > limit:
            break
        events = segment.events(session.project_id).filter(seq__gt=after_seq)
        if before_seq is not None:
            events = events.filter(seq__lt=before_seq)
        if wanted_types:
            events = events.of_types(wanted_types)
        if contains:
            events = events.containing(contains)
        events = events.order_by("-seq" if newest else "seq")
        most = limit + 1 - len(found)
        found += _read_rows(session.project_id, events, most, contains, newest)
    has_more = len(found) > limit
    if newest:
        kept = found[:limit][::-1]
        return OutlinePage(kept, has_more, before_seq is not None)
    return OutlinePage(found[:limit], after_seq > 0, has_more)


def _read_rows(
    project_id: UUID, events: EventQuerySet, limit: int, contains: str, newest: bool
) -> list[OutlineEvent]:
    """Read `limit` rows; those that lie in the store only if they hold `contains`."""
    found: list[OutlineEvent] = []
    while len(found) < limit:
        rows = list(events.values_list(*COLUMNS, "blob_id")[: limit - len(found)])
        blob_ids = {row[-1] for row in rows if row[-1]} if contains else set()
        texts = stored_texts(project_id, blob_ids)
        kept = [
            OutlineEvent._make(row[:-1])
            for row in rows
            if row[-1] not in blob_ids or holds(texts.get(row[-1], ""), contains)
        ]
        found += kept
        if len(kept) == len(rows):
            break
        # Some were not: as many again, from behind the last one looked at.
        events = events.filter(**{"seq__lt" if newest else "seq__gt": rows[-1][0]})
    return found


def read_around(session: Session, seq: int, limit: int = 100) -> OutlinePage:
    """Return the events around `seq`, which is among them if the log has it."""
    before = read_outline(session, before_seq=seq, limit=limit // 2, newest=True)
    behind = read_outline(session, after_seq=seq - 1, limit=limit - limit // 2)
    events = before.events + behind.events
    return OutlinePage(events, before.has_earlier, behind.has_later)


def summarize(type_name: str, head: str, is_cut: bool) -> Summary:
    """Say in a line what an event holds, whatever it holds."""
    if is_cut:
        return Summary(cut_text(_text_in_head(head), TEXT_CHARS, is_cut=True))
    try:
        payload = codec.loads(head, max_depth=10_000)
        return _summary(type_name, payload)
    except (AppError, KeyError, TypeError, AttributeError, IndexError):
        note = "This record is not of the shape its type promises."
        return Summary(cut_text(head, TEXT_CHARS), note=note)


def _summary(type_name: str, payload: Any) -> Summary:
    if type_name in types.MESSAGE_TYPES:
        return Summary(_line(content_text(payload["content"])))
    if type_name == types.TOOL_CALL:
        given = payload.get("arguments")
        shown = given if isinstance(given, str) else codec.dumps(given)
        return Summary(_line(f"{payload['name']}({'' if given is None else shown})"))
    if type_name == types.TOOL_RESULT:
        is_error = payload.get("is_error") is True
        return Summary(_line(_any_text(payload.get("content"))), is_error)
    if type_name == types.STATE_CHANGED:
        changes = ", ".join(f"{o['op']} {o['path'] or '/'}" for o in payload["patch"])
        return Summary(_line(f"version {payload['version']}: {changes or 'unchanged'}"))
    if type_name == types.REASONING:
        return Summary(_line(_any_text(payload.get("content"))))
    return Summary(_line(_any_text(payload)))


def content_text(content: Any) -> str:
    """A message's text: itself, or the texts of its parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return " ".join(
        part["text"] if isinstance(part.get("text"), str) else f"[{part['type']}]"
        for part in content
    )


def _any_text(value: Any) -> str:
    return value if isinstance(value, str) else codec.dumps(value)


def _line(text: str) -> str:
    return cut_text(text, TEXT_CHARS)


def _text_in_head(head: str) -> str:
    """The beginning of a cut payload's content, or of its JSON."""
    if found := CONTENT_STRING.search(head):
        try:
            return str(codec.loads(f'"{found[1]}"'))
        except AppError:
            return found[1]
    return head or "(large)"


def cut_text(text: str, length: int, *, is_cut: bool = False) -> str:
    """Return at most `length` characters, never ending within a visible sign.

    `is_cut`: something was cut off `text` before.
    """
    if len(text) <= length and not is_cut:
        return text
    end = min(length, len(text))
    # What follows the cut, or is about to be cut off it, may belong to the last sign.
    if len(text) > end or is_cut:
        while end > 0 and _continues(text[end - 1]):
            end -= 1
        end = max(end - 1, 0)
    return f"{text[:end]}…"


def _continues(character: str) -> bool:
    """Whether this is drawn as part of the character before it."""
    return (
        unicodedata.combining(character) > 0
        or unicodedata.category(character) in ("Mn", "Me", "Mc")
        or character in "\u200d\ufe0e\ufe0f"
        or "\U0001f3fb" <= character <= "\U0001f3ff"
    )


class LastRecord(NamedTuple):
    """The head of the newest record of a session's conversation."""

    type: str
    summary: Summary


def last_records(
    project_id: UUID, session_ids: Iterable[UUID]
) -> dict[UUID, LastRecord]:
    """Return by session what was said last in it, cut in the database."""
    with connection.cursor() as cursor:
        cursor.execute(
            LAST_RECORDS,
            [list(session_ids), HEAD_PAYLOAD_BYTES, PREVIEW_CHARS, project_id],
        )
        rows = cursor.fetchall()
    return {
        session_id: LastRecord(
            type_name, summarize(type_name, head, len(head.encode()) < size)
        )
        for session_id, type_name, head, size in rows
    }


_TYPES = ", ".join(f"'{name}'" for name in types.CONVERSATION_TYPES)
LAST_RECORDS = f"""
SELECT wanted.id, e.type, e.head, e.payload_bytes
FROM unnest(%s::uuid[]) AS wanted(id)
CROSS JOIN LATERAL (
    SELECT type, payload_bytes,
           CASE WHEN blob_id IS NOT NULL
                THEN left(payload #>> '{{$stored,head}}', {PREVIEW_CHARS})
                WHEN payload_bytes <= %s THEN left(payload::text, %s) ELSE '' END
           AS head
    FROM agent_events
    WHERE project_id = %s AND session_id = wanted.id AND type IN ({_TYPES})
    ORDER BY seq DESC LIMIT 1
) AS e
"""
