"""Writing a session's state: read, compute the patch, write if nobody was faster.

Nothing is locked while the patch is computed; agentstate_write_state (migration 0004)
compares the version under the row's lock.
"""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.conf import settings

from agentstate import codec
from agentstate.errors import FieldError
from agentstate.ids import new_id
from agentstate.json_patch import apply_patch, diff
from agentstate.prepared import prepared_cursor
from sessions_app.append import NewEvent, refusal
from sessions_app.errors import SessionNotFound, StateTooLarge, VersionConflict
from sessions_app.models import Session
from sessions_app.replay import StateAt, changes_since


def write_state(
    project_id: UUID,
    session_id: UUID,
    new_state: dict[str, Any] | Callable[[Any], Any],
    *,
    expected_version: int | None,
    actor: str,
    lock_token: UUID | None = None,
    subject: str | None = None,
    run_id: UUID | None = None,
    step_id: UUID | None = None,
    by_server: bool = False,
) -> StateAt:
    """Replace the state if it is still at `expected_version`; return what it is now.

    `new_state` is the value, or a function of the old one. Each write is one event and
    one version more, also when it changes nothing. Raises VersionConflict with the
    current version and the paths changed since; the state is then as it was. None for
    `expected_version` takes whichever there is, and may meet a conflict all the same.
    """
    session = _read(project_id, session_id, subject)
    if expected_version not in (None, session.version):
        raise _conflict(session, expected_version)
    wanted = new_state(session.state) if callable(new_state) else new_state
    if not isinstance(wanted, dict):
        raise FieldError("state", "not_an_object", "the state must be an object")
    patch = diff(session.state, wanted)
    # What replay will make of the log, to the order of keys.
    state = apply_patch(session.state, patch)
    version = _store(
        session,
        state,
        patch,
        event_id=new_id(),
        run_id=run_id,
        step_id=step_id,
        actor=actor,
        by_server=by_server,
        lock_token=lock_token,
        subject=subject,
    )
    return StateAt(state, version)


def replay_state_event(
    project_id: UUID, session_id: UUID, event: NewEvent, *, actor: str
) -> StateAt:
    """Append a state.changed of another log as it is; the state becomes what it says.

    For an import. The event is the next version, or VersionConflict is raised; a patch
    that does not apply raises PatchFailed or FieldError.
    """
    session = _read(project_id, session_id, None)
    version, patch = event.payload.get("version"), event.payload.get("patch")
    if event.payload.keys() != {"version", "patch"} or not isinstance(patch, list):
        raise FieldError("payload", "invalid", "must be {version, patch}")
    if version != session.version + 1:
        raise _conflict(session, session.version)
    state = apply_patch(session.state, patch)
    if not isinstance(state, dict):
        raise FieldError("payload.patch", "not_an_object", "makes the state no object")
    written = _store(
        session,
        state,
        patch,
        event_id=event.id or new_id(),
        run_id=event.run_id,
        step_id=event.step_id,
        actor=actor,
        by_server=True,
    )
    return StateAt(state, written)


def _store(
    session: Session,
    state: Any,
    patch: Any,
    *,
    event_id: UUID,
    run_id: UUID | None,
    step_id: UUID | None,
    actor: str,
    by_server: bool,
    lock_token: UUID | None = None,
    subject: str | None = None,
) -> int:
    """Write `state` and its event if the version is still `session`'s; return the new.

    Raises VersionConflict, and what an append raises.
    """
    text = codec.dumps(state)
    _check_size(text)
    # In an answer or a PUT it stands one level down, and must fit there too.
    codec.check_depth(text, settings.JSON_MAX_DEPTH - 1)
    arguments: list[Any] = [
        session.project_id,
        session.pk,
        session.version,
        text,
        codec.dumps(patch),
        event_id,
        run_id,
        step_id,
        actor,
        by_server,
        lock_token,
        subject,
    ]
    with prepared_cursor() as cursor:
        cursor.execute(WRITE, arguments)
        outcome, version, info = cursor.fetchone()
    if outcome == "version_conflict":
        now = _read(session.project_id, session.pk, subject)
        raise _conflict(now, session.version)
    if outcome != "written":
        raise refusal(outcome, None, info, None)
    found: int = version
    return found


WRITE = """
SELECT outcome, version, info FROM agentstate_write_state(
    %s::uuid, %s::uuid, %s::bigint, %s, %s, %s::uuid, %s::uuid, %s::uuid, %s, %s,
    %s::uuid, %s)
"""


def _read(project_id: UUID, session_id: UUID, subject: str | None) -> Session:
    sessions = Session.objects.filter(project_id=project_id, id=session_id)
    if subject is not None:
        sessions = sessions.filter(subject=subject)
    session = sessions.first()
    if session is None:
        raise SessionNotFound
    return session


def _conflict(session: Session, expected: int) -> VersionConflict:
    return VersionConflict(
        expected_version=expected,
        current_version=session.version,
        changed_paths=changes_since(session, expected),
    )


def _check_size(text: str) -> None:
    size = len(text.encode())
    if size > settings.STATE_MAX_BYTES:
        raise StateTooLarge(size_bytes=size, limit_bytes=settings.STATE_MAX_BYTES)
