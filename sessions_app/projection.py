"""What a session's log says its rows must hold, and where the rows say otherwise.

The log is the truth: `verify_replay` folds it anew and compares. Apps above add
projections of their own with `register_projection`, from their AppConfig.ready, so
that nothing here knows them.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection, transaction
from django.db.models import Max

from agentstate import codec
from agentstate.errors import AppError
from agentstate.json_patch import apply_patch
from sessions_app import event_types as types
from sessions_app.errors import ContentMissing, StorageUnavailable
from sessions_app.facts import session_changes
from sessions_app.log import PAGE_BYTES, StoredEvent, iso, read_all, read_log
from sessions_app.models import (
    Artifact,
    Event,
    Session,
    SessionStatus,
    Snapshot,
    ToolCall,
)

SHOWN_LENGTH = 200  # of a value in a report
UNREAD = object()  # a state that cannot be folded: it was reported, and is not compared


class Nothing:
    """Stands for a value that is not there; null is a value."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING = Nothing()


class Difference(NamedTuple):
    """One place where a row is not what the log makes of it.

    `path` begins with the row's own name: `state/cart/0`, `snapshots/12/version`.
    """

    session_id: UUID
    path: str
    log: Any
    row: Any

    def __str__(self) -> str:
        return (
            f"session {self.session_id} {self.path}: "
            f"log says {_shown(self.log)}, row says {_shown(self.row)}"
        )


type Differences = Callable[[Session], Iterator[Difference]]

_projections: dict[str, Differences] = {}


def register_projection(name: str, differences: Differences) -> None:
    """Have `verify_replay` compare another projection, session by session.

    `differences` gets a session whose row was just read and yields what differs. It
    runs in a read-only transaction that sees one moment, with its own reads of the log
    (`sessions_app.log.read_log`, by types). Registering a name again replaces it.
    """
    _projections[name] = differences


def projections() -> Mapping[str, Differences]:
    return dict(_projections)


def differences_of(project_id: UUID, session_id: UUID) -> Iterator[Difference]:
    """Compare every projection of one session; nothing if it is gone by now."""
    with one_moment():
        session = Session.objects.filter(project_id=project_id, id=session_id).first()
        if session is None:
            return
        for differences in projections().values():
            try:
                yield from differences(session)
            except (ContentMissing, StorageUnavailable) as exc:
                yield Difference(session_id, "events", NOTHING, exc.detail)


@contextmanager
def one_moment() -> Iterator[None]:
    """Let all reads see the same moment, so that a concurrent append is no difference.

    In a caller's transaction it is that one's own affair.
    """
    if connection.in_atomic_block:
        yield
        return
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def compare(session_id: UUID, path: str, log: Any, row: Any) -> Iterator[Difference]:
    """Yield where two JSON values differ, down to the member. 1 and 1.0 do differ."""
    if isinstance(log, dict) and isinstance(row, dict):
        for key in log | row:
            yield from compare(
                session_id,
                f"{path}/{_escape(key)}",
                log.get(key, NOTHING),
                row.get(key, NOTHING),
            )
    elif isinstance(log, list) and isinstance(row, list):
        for index in range(max(len(log), len(row))):
            yield from compare(
                session_id,
                f"{path}/{index}",
                log[index] if index < len(log) else NOTHING,
                row[index] if index < len(row) else NOTHING,
            )
    elif type(log) is not type(row) or str(log) != str(row):
        yield Difference(session_id, path, log, row)


@dataclass
class Call:
    """A tool call as the log tells it."""

    call_seq: int
    tool_call_id: str
    name: str
    awaiting: str
    result_seq: int | None = None
    result_synthetic: bool = False
    stand_in_seq: int | None = None

    @property
    def takes_result(self) -> bool:
        return self.result_seq is None or self.result_synthetic


class Fold:
    """The rows of one session as its log tells them, event by event."""

    def __init__(self, session: Session) -> None:
        self.session_id = session.pk
        # A fork's own life begins behind this; before it, only the state is its own.
        self.forked_from = session.forked_from_seq or 0
        self.facts: dict[str, Any] = {"status": SessionStatus.OPEN.value}
        self.last_seq = 0
        self.log_bytes = 0
        self.updated_at: str | None = None
        self.state: Any = {}
        self.version = 0
        self.snapshot_version = 0
        self.patch_bytes = 0
        self.calls: dict[int, Call] = {}
        # By id, oldest first; only those that a result may still go to.
        self.waiting: dict[str, list[Call]] = {}
        # What a fork was given: the calls that a result might still go to.
        self.given: set[int] = set()

    def begin(self, created: StoredEvent) -> None:
        """Take session.created, the record at seq 0."""
        self.facts |= {"parent": None, "forked_from_seq": None, "closed_at": None}
        self.facts |= created.payload

    def take(self, event: StoredEvent) -> Iterator[Difference]:
        """Take the next event; yield what is wrong with its own row."""
        if event.seq > self.last_seq + 1:
            gap = f"events/{self.last_seq + 1} to {event.seq - 1}"
            yield self.differs(gap, "a gap", f"event {event.seq} behind it")
        self.last_seq = event.seq
        size = len(event.payload_text.encode())
        yield from compare(
            self.session_id,
            f"events/{event.seq}/payload_bytes",
            size,
            event.payload_bytes,
        )
        if event.type == types.STATE_CHANGED:
            yield from self._change_state(event)
        elif event.type == types.TOOL_CALL:
            self._open_call(event)
        elif event.type == types.TOOL_RESULT:
            self._close_call(event)
        if event.seq > self.forked_from:
            self.log_bytes += event.payload_bytes
            self.updated_at = iso(event.created_at)
            if event.type.startswith("session."):
                self.facts |= session_changes(event.type, event.payload)
        elif event.seq == self.forked_from:
            self.given = {c.call_seq for c in self.calls.values() if c.takes_result}

    def differs(self, path: str, log: Any, row: Any) -> Difference:
        return Difference(self.session_id, path, log, row)

    def _change_state(self, event: StoredEvent) -> Iterator[Difference]:
        payload = event.payload
        path = f"events/{event.seq}/payload"
        if payload.get("version") != self.version + 1:
            yield self.differs(
                f"{path}/version", self.version + 1, payload.get("version")
            )
        self.version = payload.get("version", self.version + 1)
        frame = f'{{"version":{self.version},"patch":}}'
        self.patch_bytes += event.payload_bytes - len(frame)
        if self.state is UNREAD:
            return
        try:
            self.state = apply_patch(self.state, payload["patch"])
        except (AppError, KeyError) as exc:
            yield self.differs(f"{path}/patch", f"it does not apply: {exc}", NOTHING)
            self.state = UNREAD

    def _open_call(self, event: StoredEvent) -> None:
        payload = event.payload
        if (call_id := payload.get("tool_call_id")) is None:
            return
        call = Call(
            event.seq, call_id, payload.get("name") or "", payload.get("awaiting") or ""
        )
        self.calls[call.call_seq] = call
        self.waiting.setdefault(call_id, []).append(call)

    def _close_call(self, event: StoredEvent) -> None:
        """The same rule as in agentstate_append_events."""
        payload = event.payload
        synthetic = bool(payload.get("synthetic"))
        waiting = self.waiting.get(payload.get("tool_call_id", ""), [])
        fitting = [c for c in waiting if c.result_seq is None] or (
            [] if synthetic else waiting
        )
        if not fitting:
            return
        call = fitting[-1]
        call.stand_in_seq = call.result_seq
        call.result_seq, call.result_synthetic = event.seq, synthetic
        if not call.takes_result:
            waiting.remove(call)


def session_differences(session: Session) -> Iterator[Difference]:
    """Compare a session's row, snapshots and tool calls with its log."""
    fold = Fold(session)
    created = read_log(session, after_seq=-1, before_seq=1, limit=1).events
    if created and created[0].seq == 0:
        fold.begin(created[0])
    else:
        yield fold.differs("events/0", NOTHING, "the session exists")
        fold.facts |= _row_facts(session)
    snapshots = list(
        Snapshot.objects.filter(project_id=session.project_id, session_id=session.pk)
        .order_by("seq")
        .values_list("seq", flat=True)
    )
    yield from _snapshots_up_to(fold, snapshots, 0, session)
    for event in read_all(_whole(session)):
        yield from _snapshots_up_to(fold, snapshots, event.seq - 1, session)
        yield from fold.take(event)
        yield from _snapshots_up_to(fold, snapshots, event.seq, session)
    for seq in snapshots:
        yield fold.differs(f"snapshots/{seq}", NOTHING, "a snapshot")
    yield from _row_differences(fold, session)
    yield from _call_differences(fold, session)


def _whole(session: Session) -> Session:
    """The session with the numbers of its log rather than those of its row."""
    found = Event.objects.filter(
        project_id=session.project_id, session_id=session.pk
    ).aggregate(last=Max("seq"))
    whole = copy(session)
    whole.last_seq = max(found["last"] or 0, session.forked_from_seq or 0)
    whole.log_bytes = PAGE_BYTES + 1  # unknown: read by pages
    return whole


def _snapshots_up_to(
    fold: Fold, seqs: list[int], seq: int, session: Session
) -> Iterator[Difference]:
    """Compare the snapshots at or below `seq` with the fold, and drop them from it."""
    while seqs and seqs[0] <= seq:
        at = seqs.pop(0)
        snapshot = Snapshot.objects.get(
            project_id=session.project_id, session_id=session.pk, seq=at
        )
        path = f"snapshots/{at}"
        yield from compare(
            fold.session_id, f"{path}/version", fold.version, snapshot.version
        )
        yield from _state_differences(fold, f"{path}/state", snapshot.state)
        fold.snapshot_version, fold.patch_bytes = fold.version, 0


def _state_differences(fold: Fold, path: str, row: Any) -> Iterator[Difference]:
    if fold.state is UNREAD:
        return
    found = False
    for difference in compare(fold.session_id, path, fold.state, row):
        found = True
        yield difference
    if not found and codec.dumps(fold.state) != codec.dumps(row):
        yield fold.differs(path, "another order of keys", "this one")


def _row_facts(session: Session) -> dict[str, Any]:
    return {
        "key": session.key,
        "agent": session.agent,
        "subject": session.subject,
        "title": session.title,
        "status": session.status,
        "labels": session.labels,
        "metadata": session.metadata,
        "expires_at": iso(session.expires_at),
        "closed_at": iso(session.closed_at),
        "parent": str(session.parent_id) if session.parent_id else None,
        "forked_from_seq": session.forked_from_seq,
    }


def _row_differences(fold: Fold, session: Session) -> Iterator[Difference]:
    row = _row_facts(session) | {
        "last_seq": session.last_seq,
        "version": session.version,
        "log_bytes": session.log_bytes,
        "snapshot_version": session.snapshot_version,
        "patch_bytes": session.patch_bytes,
    }
    log = {name: fold.facts.get(name, NOTHING) for name in _row_facts(session)} | {
        "last_seq": max(fold.last_seq, fold.forked_from),
        "version": fold.version,
        "log_bytes": fold.log_bytes,
        "snapshot_version": fold.snapshot_version,
        "patch_bytes": fold.patch_bytes,
    }
    for name, value in row.items():
        yield from compare(fold.session_id, name, log[name], value)
    yield from _state_differences(fold, "state", session.state)
    if fold.updated_at is not None:
        yield from compare(
            fold.session_id, "updated_at", fold.updated_at, iso(session.updated_at)
        )
        if session.active_at <= session.updated_at - timedelta(minutes=1):
            yield fold.differs(
                "active_at", "within a minute of updated_at", iso(session.active_at)
            )


def _call_differences(fold: Fold, session: Session) -> Iterator[Difference]:
    """A row for each call of its own, and for each that a fork was given.

    Others may be there, since the heir of an erased session has them; they are right
    or they differ.
    """
    own_from = session.lineage[-1][1] if session.lineage else 0
    found: set[int] = set()
    rows = ToolCall.objects.filter(project_id=session.project_id, session_id=session.pk)
    for row in rows.order_by("call_seq").iterator(chunk_size=1000):
        found.add(row.call_seq)
        path = f"tool_calls/{row.call_seq}"
        call = fold.calls.get(row.call_seq)
        if call is None:
            yield fold.differs(path, NOTHING, f"a call of {row.name}")
            continue
        for name, value in vars(call).items():
            yield from compare(
                fold.session_id, f"{path}/{name}", value, getattr(row, name)
            )
    for call in fold.calls.values():
        expected = call.call_seq > own_from or call.call_seq in fold.given
        if expected and call.call_seq not in found:
            yield fold.differs(
                f"tool_calls/{call.call_seq}", f"a call of {call.name}", NOTHING
            )


def _shown(value: Any) -> str:
    text = repr(value) if value is NOTHING else codec.dumps(value)
    return text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}…"


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


class Orphan(NamedTuple):
    """Rows of a session that is not there."""

    project_id: UUID
    session_id: UUID
    table: str

    def __str__(self) -> str:
        return f"session {self.session_id}: rows in {self.table}, but no session"


def orphans(project_id: UUID | None = None) -> Iterator[Orphan]:
    """Yield which sessions have rows but do not exist: an erase took all or nothing."""
    for model in (Event, Snapshot, ToolCall, Artifact):
        table = model._meta.db_table
        with connection.cursor() as cursor:
            cursor.execute(
                f"""
                SELECT DISTINCT project_id, session_id FROM {table} AS t
                WHERE (%(project)s::uuid IS NULL OR project_id = %(project)s)
                  AND NOT EXISTS (SELECT FROM agent_sessions s
                                  WHERE s.id = t.session_id
                                    AND s.project_id = t.project_id)
                LIMIT 1000
                """,
                {"project": project_id},
            )
            for owner, session_id in cursor.fetchall():
                yield Orphan(owner, session_id, table)
