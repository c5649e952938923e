"""The only writes to sessions, their logs and their state."""

from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import IntegrityError, connection, transaction

from access_app.services import record_audit
from agentstate.clock import Now, db_now
from agentstate.errors import FieldError
from agentstate.ids import new_id
from sessions_app import event_types as types
from sessions_app.append import (
    AppendResult,
    NewEvent,
    append_events,
    first_record,
)
from sessions_app.artifacts.erasing import erase_artifacts
from sessions_app.errors import (
    LockLost,
    SessionClosed,
    SessionKeyTaken,
    SessionLocked,
    SessionNotFound,
)
from sessions_app.facts import checked_changes
from sessions_app.forks import pass_on_to_forks
from sessions_app.log import iso
from sessions_app.models import Session, SessionStatus
from sessions_app.state import write_state
from sessions_app.working_memory import (
    Scope,
    end_after_commit,
    erase_after_commit,
)

__all__ = [
    "AppendResult",
    "NewEvent",
    "append_event",
    "append_events",
    "close_session",
    "create_session",
    "erase_session",
    "get_session",
    "lock_session",
    "release_lock",
    "reopen_session",
    "replay_session_event",
    "update_session",
    "write_state",
]

LOCK_MAX_SECONDS = 3600
CREATE_ATTEMPTS = 5
# What `update_session` may change; all of it is text or JSON in session.updated.
UPDATABLE = ("title", "agent", "labels", "metadata", "expires_at")


@dataclass(frozen=True)
class SessionFields:
    """What a session is created with. `key` is the client's own name for it."""

    key: str | None = None
    agent: str = ""
    subject: str = ""
    title: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    expires_at: datetime | None = None


def create_session(
    project_id: UUID,
    fields: SessionFields,
    *,
    state: dict[str, Any] | None = None,
    actor: str = "system",
    named: Collection[str] = (),
) -> tuple[Session, bool]:
    """Create a session, or return the one that has this key; and whether it is new.

    `named` are the fields that the client sent: a session that exists must agree with
    those of them that say whose it is (subject, agent), or SessionKeyTaken is raised.
    `state`, if given, becomes version 1.
    """
    for attempt in range(CREATE_ATTEMPTS):
        if found := _find_by_key(project_id, fields, named):
            return found, False
        try:
            with transaction.atomic():
                return _insert_session(project_id, fields, state, actor), True
        except IntegrityError:
            # Another call has created it in this very moment; or a third has already
            # erased it again, and the key is free.
            if fields.key is None or attempt == CREATE_ATTEMPTS - 1:
                raise
    raise AssertionError("unreachable")


def _find_by_key(
    project_id: UUID, fields: SessionFields, named: Collection[str]
) -> Session | None:
    if fields.key is None:
        return None
    found = Session.objects.filter(project_id=project_id, key=fields.key).first()
    if found is None:
        return None
    differing = [
        name
        for name in ("subject", "agent")
        if name in named and getattr(found, name) != getattr(fields, name)
    ]
    if differing:
        raise SessionKeyTaken(key=fields.key, differing=differing)
    return found


def _insert_session(
    project_id: UUID,
    fields: SessionFields,
    state: dict[str, Any] | None,
    actor: str,
) -> Session:
    session = Session(
        id=new_id(),
        project_id=project_id,
        key=fields.key,
        agent=fields.agent,
        subject=fields.subject,
        title=fields.title,
        labels=fields.labels,
        metadata=fields.metadata,
        expires_at=fields.expires_at,
    )
    session.save(force_insert=True)
    first_record(session, session_facts(session), actor)
    if state:
        write_state(project_id, session.id, state, expected_version=0, actor=actor)
    session.refresh_from_db()
    return session


def session_facts(session: Session) -> dict[str, Any]:
    """Return what session.created says: all that the row was born with."""
    facts: dict[str, Any] = {
        "key": session.key,
        "agent": session.agent,
        "subject": session.subject,
        "title": session.title,
        "labels": session.labels,
        "metadata": session.metadata,
        "expires_at": iso(session.expires_at),
    }
    if session.parent_id:
        facts["parent"] = str(session.parent_id)
        facts["forked_from_seq"] = session.forked_from_seq
    return facts


def get_session(
    project_id: UUID,
    session_id: UUID,
    *,
    subject: str | None = None,
    lock: bool = False,
) -> Session:
    """Return the session. `subject` narrows to that subject's; raises SessionNotFound.

    `lock` takes the row lock that appends take, in the caller's transaction.
    """
    sessions = Session.objects.filter(project_id=project_id, id=session_id)
    if subject is not None:
        sessions = sessions.filter(subject=subject)
    if lock:
        sessions = sessions.select_for_update(no_key=True)
    session = sessions.first()
    if session is None:
        raise SessionNotFound
    return session


def append_event(
    project_id: UUID,
    session_id: UUID,
    type: str,
    payload: dict[str, Any],
    *,
    actor: str = "system",
    run_id: UUID | None = None,
    step_id: UUID | None = None,
) -> int:
    """Append one event of the server's own and return its seq.

    In the caller's transaction, so that the event and what it tells of stand together.
    A closed or locked session takes it: what happened has happened.
    """
    event = NewEvent(type=type, payload=payload, run_id=run_id, step_id=step_id)
    result = append_events(project_id, session_id, [event], actor=actor, by_server=True)
    return result.seqs[0]


@transaction.atomic
def update_session(
    project_id: UUID,
    session_id: UUID,
    changes: dict[str, Any],
    *,
    actor: str,
    lock_token: UUID | None = None,
    subject: str | None = None,
) -> Session:
    """Change fields of UPDATABLE and append session.updated, unless nothing changes."""
    session = get_session(project_id, session_id, subject=subject, lock=True)
    check_lock(session, lock_token)
    differing = {
        name: value
        for name, value in changes.items()
        if getattr(session, name) != value
    }
    if not differing:
        return session
    Session.objects.filter(project_id=project_id, id=session_id).update(**differing)
    told = {
        name: iso(value) if isinstance(value, datetime) else value
        for name, value in differing.items()
    }
    append_event(
        project_id, session_id, types.SESSION_UPDATED, {"changes": told}, actor=actor
    )
    session.refresh_from_db()
    return session


@transaction.atomic
def replay_session_event(
    project_id: UUID, session_id: UUID, event: NewEvent, *, actor: str
) -> int:
    """Append a session.* event of another log as it is, and do what it tells.

    For an import: times and reasons stay those of the source. Raises FieldError if the
    event would put something on the session's row that does not belong there.
    """
    changes = checked_changes(event.type, event.payload)
    session = get_session(project_id, session_id, lock=True)
    result = append_events(project_id, session_id, [event], actor=actor, by_server=True)
    # An event that was in the log already has done what it tells.
    if changes and result.last_seq > session.last_seq:
        Session.objects.filter(project_id=project_id, id=session_id).update(**changes)
    return result.seqs[0]


def close_session(
    project_id: UUID,
    session_id: UUID,
    *,
    actor: str,
    reason: str = "",
    lock_token: UUID | None = None,
    subject: str | None = None,
) -> Session:
    """Close the session: it takes no more events. Closing it again changes nothing."""
    return _move(
        project_id,
        session_id,
        SessionStatus.CLOSED,
        types.SESSION_CLOSED,
        actor=actor,
        reason=reason,
        lock_token=lock_token,
        subject=subject,
    )


def reopen_session(
    project_id: UUID,
    session_id: UUID,
    *,
    actor: str,
    reason: str = "",
    lock_token: UUID | None = None,
    subject: str | None = None,
) -> Session:
    """Open a closed session again. An open one stays as it is."""
    return _move(
        project_id,
        session_id,
        SessionStatus.OPEN,
        types.SESSION_REOPENED,
        actor=actor,
        reason=reason,
        lock_token=lock_token,
        subject=subject,
    )


@transaction.atomic
def _move(
    project_id: UUID,
    session_id: UUID,
    status: SessionStatus,
    event_type: str,
    *,
    actor: str,
    reason: str,
    lock_token: UUID | None,
    subject: str | None,
) -> Session:
    session = get_session(project_id, session_id, subject=subject, lock=True)
    check_lock(session, lock_token)
    if session.status == status:
        return session
    closed_at = None if status == SessionStatus.OPEN else db_now()
    Session.objects.filter(project_id=project_id, id=session_id).update(
        status=status, closed_at=closed_at
    )
    seq = append_event(
        project_id,
        session_id,
        event_type,
        {"reason": reason, "at": iso(closed_at)} if closed_at else {"reason": reason},
        actor=actor,
    )
    if closed_at:
        end_after_commit(Scope(project_id, session_id, seq))
    session.refresh_from_db()
    return session


@transaction.atomic
def erase_session(
    project_id: UUID,
    session_id: UUID,
    *,
    actor: str,
    reason: str = "",
    lock_token: UUID | None = None,
    subject: str | None = None,
) -> int:
    """Erase the session, its log and all that was derived; return the events erased.

    Forks keep the log that they began with. What remains is an audit entry without a
    word of the session's content.
    """
    session = get_session(project_id, session_id, subject=subject, lock=True)
    check_lock(session, lock_token)
    pass_on_to_forks(session, actor=actor)
    artifacts = erase_artifacts(project_id, [session_id])
    erased = _erase_rows(project_id, session_id)
    erase_after_commit(project_id, session_id)
    record_audit(
        project_id,
        actor,
        "session.erased",
        f"session:{session_id}",
        after={"events": erased, "artifacts": artifacts},
        reason=reason,
    )
    return erased


def _erase_rows(project_id: UUID, session_id: UUID) -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT agentstate_erase_session(%s, %s)", [project_id, session_id]
        )
        erased: int = cursor.fetchone()[0]
    return erased


@dataclass(frozen=True)
class Lock:
    """A lease on a session's writes. `fence` only grows, one for each lease."""

    token: UUID
    fence: int
    holder: str
    until: datetime


@transaction.atomic
def lock_session(
    project_id: UUID,
    session_id: UUID,
    *,
    holder: str,
    seconds: int,
    lock_token: UUID | None = None,
    subject: str | None = None,
) -> Lock:
    """Take the session's lock, or with its token extend it, for `seconds` from now.

    While it is held, writes without its token raise SessionLocked. Raises SessionLocked
    if another holds it, LockLost if `lock_token` is not (or no more) the current one.
    """
    if not 1 <= seconds <= LOCK_MAX_SECONDS:
        raise FieldError(
            "ttl_s", "out_of_range", f"must be 1 to {LOCK_MAX_SECONDS} seconds"
        )
    session = get_session(project_id, session_id, subject=subject, lock=True)
    if not session.is_open:
        raise SessionClosed(session_status=session.status)
    now = db_now()
    check_lock(session, lock_token, now=now)
    token, fence = session.lock_token, session.lock_fence
    if lock_token is None or token is None:
        token, fence = new_id(), fence + 1
    lock = Lock(token, fence, holder, now + timedelta(seconds=seconds))
    Session.objects.filter(project_id=project_id, id=session_id).update(
        lock_token=lock.token,
        lock_fence=lock.fence,
        lock_holder=lock.holder,
        lock_until=lock.until,
    )
    return lock


@transaction.atomic
def release_lock(
    project_id: UUID,
    session_id: UUID,
    lock_token: UUID,
    *,
    subject: str | None = None,
) -> None:
    """Give the lock back. Raises LockLost if the token is not the current one."""
    session = get_session(project_id, session_id, subject=subject, lock=True)
    check_lock(session, lock_token)
    Session.objects.filter(project_id=project_id, id=session_id).update(
        lock_token=None, lock_holder="", lock_until=None
    )


def check_lock(
    session: Session, lock_token: UUID | None, *, now: datetime | None = None
) -> None:
    """Raise SessionLocked or LockLost unless a writer with `lock_token` may write.

    The session's row must be locked. agentstate_append_events holds the same rule.
    """
    now = now or (db_now() if session.lock_until else None)
    is_held = bool(session.lock_until and now and session.lock_until > now)
    if lock_token is not None and not (is_held and session.lock_token == lock_token):
        raise LockLost
    if lock_token is None and is_held:
        raise SessionLocked(lock_until=iso(session.lock_until))


def close_expired_sessions(limit: int = 500) -> int:
    """Close sessions whose `expires_at` has passed; return how many."""
    expired = Session.objects.filter(
        status=SessionStatus.OPEN, expires_at__lte=Now()
    ).values_list("project_id", "id")[:limit]
    closed = 0
    for project_id, session_id in list(expired):
        with suppress(SessionNotFound):  # erased meanwhile
            closed += close_if_expired(project_id, session_id)
    return closed


@transaction.atomic
def close_if_expired(project_id: UUID, session_id: UUID) -> bool:
    """Close the session unless it was closed, or given more time, meanwhile."""
    session = get_session(project_id, session_id, lock=True)
    now = db_now()
    is_due = session.expires_at is not None and session.expires_at <= now
    if session.is_open and is_due:
        Session.objects.filter(project_id=project_id, id=session_id).update(
            status=SessionStatus.CLOSED, closed_at=now
        )
        seq = append_event(
            project_id,
            session_id,
            types.SESSION_CLOSED,
            {"reason": "expired", "at": iso(now)},
        )
        end_after_commit(Scope(project_id, session_id, seq))
    return session.is_open and is_due
