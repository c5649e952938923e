"""Forgetting in sessions: logs, states and snapshots, so that replay still holds."""

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from django.db import connection
from django.db.models import TextField
from django.db.models.functions import Cast

from agentstate import codec
from memory_app.forgetting.scrub import Needles, blank_event
from memory_app.text import secret_hash
from sessions_app.artifacts.blobs import release
from sessions_app.models import Event, Session, Snapshot, ToolCall
from sessions_app.payloads import blobs_of, stored_texts

BATCH = 500  # events read at a time

type EventScrub = Callable[[str, dict[str, Any]], dict[str, Any]]


def sessions_about(project_id: UUID, subject: str) -> list[Session]:
    """The subject's sessions, locked in one order."""
    return list(
        Session.objects.in_project(project_id)
        .filter(subject=subject)
        .order_by("id")
        .select_for_update(no_key=True)
    )


def sessions_named(project_id: UUID, names: Iterable[str]) -> list[Session]:
    """The sessions that facts name as their source; other names are left out."""
    ids = []
    for name in set(names):
        try:
            ids.append(UUID(name))
        except ValueError:
            continue
    found = Session.objects.in_project(project_id).filter(id__in=ids)
    return list(found.order_by("id").select_for_update(no_key=True))


def redact_log(session: Session, scrub: EventScrub) -> int:
    """Put every event of the session's own rows through `scrub`; how many changed."""
    changed = 0
    after = -1
    while rows := _rows(session, after):
        after = rows[-1][0]
        changed += _write(session, _scrubbed(rows, scrub))
    return changed


def redact_events(session: Session, seqs: Iterable[int]) -> int:
    """Blank the events of these numbers, wherever in the fork's line they lie."""
    wanted = {seq for seq in seqs if seq > 0}
    owners = [(UUID(owner), upto) for owner, upto in session.lineage]
    changed = 0
    first = 0
    for owner, upto in [*owners, (session.pk, None)]:
        here = {s for s in wanted if s > first and (upto is None or s <= upto)}
        first = upto if upto is not None else first
        if here:
            holder = Session(id=owner, project_id=session.project_id)
            rows = [row for row in _rows(holder, -1, here) if row[1] in BLANKABLE]
            changed += _write(holder, _scrubbed(rows, blank_event))
    return changed


def blank_numbered(project_id: UUID, session_id: UUID, seqs: Iterable[int]) -> int:
    """Blank the events of these numbers among a session's own, of whatever type."""
    holder = Session(id=session_id, project_id=project_id)
    return _write(holder, _scrubbed(_rows(holder, -1, seqs), blank_event))


# What a source event may be; a state change is cleaned with the state it made.
BLANKABLE = frozenset(
    ("message.user", "message.assistant", "message.system", "tool.result", "reasoning")
)


def _rows(
    session: Session, after: int, seqs: Iterable[int] | None = None
) -> list[tuple[int, str, str]]:
    events = Event.objects.filter(
        project_id=session.project_id, session_id=session.pk, seq__gt=after
    )
    if seqs is not None:
        events = events.filter(seq__in=list(seqs))
    found = events.order_by("seq").values_list(
        "seq", "type", Cast("payload", TextField()), "blob_id"
    )
    rows = list(found if seqs is not None else found[:BATCH])
    texts = stored_texts(session.project_id, {row[3] for row in rows if row[3]})
    return [
        (seq, name, texts[blob_id] if blob_id else row)
        for seq, name, row, blob_id in rows
    ]


def _scrubbed(rows: list[tuple[int, str, str]], scrub: EventScrub) -> dict[int, str]:
    texts = {}
    for seq, event_type, text in rows:
        payload: Any = codec.loads(text, max_depth=10_000)
        scrubbed = scrub(event_type, payload)
        if scrubbed != payload:
            texts[seq] = codec.dumps(scrubbed)
    return texts


def _write(session: Session, texts: dict[int, str]) -> int:
    if not texts:
        return 0
    let_go = blobs_of(session.project_id, [session.pk], seq__in=list(texts))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT agentstate_redact_events(%s, %s, %s::bigint[], %s::text[])",
            [session.project_id, session.pk, list(texts), list(texts.values())],
        )
        changed: int = cursor.fetchone()[0]
    release(session.project_id, let_go)
    return changed


def clean_sessions(sessions: Iterable[Session], needles: Needles) -> dict[str, int]:
    """Take the needles out of logs, states, snapshots and titles; count by place."""
    counts = {"events": 0, "states": 0, "snapshots": 0, "sessions": 0}
    for session in sessions:
        counts["events"] += redact_log(session, needles.clean_event)
        counts["states"] += _clean_state(session, needles)
        counts["snapshots"] += _clean_snapshots(session, needles)
        counts["sessions"] += _clean_row(session, needles)
        _clean_calls(session, needles)
    return counts


def _clean_state(session: Session, needles: Needles) -> int:
    cleaned = needles.clean_json(session.state)
    if cleaned == session.state:
        return 0
    _of(session).update(state=cleaned)
    return 1


def _clean_snapshots(session: Session, needles: Needles) -> int:
    changed = 0
    for snapshot in _snapshots(session):
        cleaned = needles.clean_json(snapshot.state)
        if cleaned != snapshot.state:
            _snapshots(session).filter(pk=snapshot.pk).update(state=cleaned)
            changed += 1
    return changed


def _clean_row(session: Session, needles: Needles) -> int:
    before = {
        "title": session.title,
        "key": session.key,
        "labels": session.labels,
        "metadata": session.metadata,
    }
    after = needles.clean_json(before)
    if after == before:
        return 0
    _of(session).update(**after)
    return 1


def _clean_calls(session: Session, needles: Needles) -> None:
    calls = ToolCall.objects.filter(
        project_id=session.project_id, session_id=session.pk
    )
    for call in calls.only("id", "tool_call_id", "name"):
        names = {"tool_call_id": call.tool_call_id, "name": call.name}
        if (cleaned := needles.clean_json(names)) != names:
            calls.filter(pk=call.pk).update(**cleaned)


def blank_sessions(sessions: Iterable[Session], subject: str) -> dict[str, int]:
    """Take all content out of the sessions; numbers, types and times stay."""
    counts = {"events": 0, "states": 0, "snapshots": 0, "sessions": 0}
    for session in sessions:
        alias = pseudonym(session.project_id, subject)
        counts["events"] += redact_log(session, _blanker(alias))
        counts["states"] += int(session.state != {})
        counts["snapshots"] += _snapshots(session).exclude(version=0).update(state={})
        _of(session).update(
            state={}, title="", key=None, labels={}, metadata={}, subject=alias
        )
        counts["sessions"] += 1
    return counts


def _blanker(alias: str) -> EventScrub:
    def scrub(event_type: str, payload: dict[str, Any]) -> dict[str, Any]:
        blanked = blank_event(event_type, payload)
        if event_type == "session.created":
            blanked |= {"subject": alias, "key": None}
        if event_type == "session.updated" and "changes" in blanked:
            own = {"subject": alias, "key": None}
            changes = blanked["changes"]
            changes |= {name: own[name] for name in own if name in changes}
        return blanked

    return scrub


def pseudonym(project_id: UUID, subject: str) -> str:
    """Return the name that a forgotten subject's sessions go by; no way leads back."""
    return "forgotten-" + secret_hash(project_id.bytes, subject).hex()[:16]


def _of(session: Session) -> Any:
    return Session.objects.filter(project_id=session.project_id, id=session.pk)


def _snapshots(session: Session) -> Any:
    return Snapshot.objects.filter(project_id=session.project_id, session_id=session.pk)
