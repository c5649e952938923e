"""A new session that begins with another's log, without a copy of it."""

from uuid import UUID

from django.db import IntegrityError, transaction

from agentstate.ids import new_id
from sessions_app.append import first_record
from sessions_app.errors import SeqNotFound, SessionKeyTaken
from sessions_app.log import segments_of
from sessions_app.models import Session, Snapshot, ToolCall
from sessions_app.payloads import kept_at_hand
from sessions_app.replay import read_ahead, state_at, unsettled_calls_at
from sessions_app.services import SessionFields, get_session, session_facts


@kept_at_hand()
def fork_session(
    project_id: UUID,
    session_id: UUID,
    at_seq: int,
    fields: SessionFields,
    *,
    actor: str,
    subject: str | None = None,
) -> Session:
    """Return a new session whose log begins with the parent's events 1 to `at_seq`.

    The events are not copied: the fork reads them where they lie. Its state, version
    and open tool calls are the parent's as they were at `at_seq`. Raises SeqNotFound if
    the parent's log is shorter, SessionKeyTaken if `fields.key` is in use.
    """
    parent = get_session(project_id, session_id, subject=subject)
    read_ahead(parent, at_seq)
    return _fork(project_id, session_id, at_seq, fields, actor=actor, subject=subject)


@transaction.atomic
def _fork(
    project_id: UUID,
    session_id: UUID,
    at_seq: int,
    fields: SessionFields,
    *,
    actor: str,
    subject: str | None,
) -> Session:
    parent = get_session(project_id, session_id, subject=subject, lock=True)
    if not 0 <= at_seq <= parent.last_seq:
        raise SeqNotFound(last_seq=parent.last_seq)
    then = state_at(parent, at_seq)
    fork = Session(
        id=new_id(),
        project_id=project_id,
        key=fields.key,
        agent=fields.agent or parent.agent,
        subject=parent.subject,
        title=fields.title or parent.title,
        labels=fields.labels or parent.labels,
        metadata=fields.metadata or parent.metadata,
        expires_at=fields.expires_at,
        parent=parent,
        forked_from_seq=at_seq,
        lineage=_lineage_up_to(parent, at_seq),
        last_seq=at_seq,
        state=then.state,
        version=then.version,
        snapshot_version=then.version,
    )
    try:
        with transaction.atomic():
            fork.save(force_insert=True)
    except IntegrityError as exc:
        raise SessionKeyTaken(key=fields.key) from exc
    first_record(fork, session_facts(fork), actor)
    Snapshot.objects.create(
        project_id=project_id,
        session=fork,
        seq=at_seq,
        version=then.version,
        state=then.state,
    )
    ToolCall.objects.bulk_create(
        ToolCall(
            project_id=project_id,
            session=fork,
            call_seq=call.call_seq,
            tool_call_id=call.tool_call_id,
            name=call.name,
            awaiting=call.awaiting,
            result_seq=call.result_seq,
            result_synthetic=call.result_synthetic,
        )
        for call in unsettled_calls_at(parent, at_seq)
    )
    fork.refresh_from_db()
    return fork


def _lineage_up_to(parent: Session, at_seq: int) -> list[tuple[str, int]]:
    """The segments of the parent's log that hold 1 to `at_seq`, cut there."""
    return [
        (str(segment.session_id), min(segment.last_seq, at_seq))
        for segment in segments_of(parent)
        if segment.first_seq <= at_seq
    ]
