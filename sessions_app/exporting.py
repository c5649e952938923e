"""Exporting sessions: the forms that an import reads, piece by piece.

`jsonl` is our own and complete: one event a line, the session's creation first. The
chat forms give a conversation a line, and what an import of the same form has read
comes out equal, message for message.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from agentstate import codec
from sessions_app import event_types as types
from sessions_app.log import StoredEvent, iso, read_all, read_log
from sessions_app.models import Session
from sessions_app.transcripts import anthropic, openai
from sessions_app.transcripts.drafts import Draft
from sessions_app.transcripts.reading import IMPORTED_KEY, IMPORTED_TYPE

FORMS = ("openai", "anthropic", "jsonl")
CHAT = {
    *types.MESSAGE_TYPES,
    types.TOOL_CALL,
    types.TOOL_RESULT,
    *(f"{form}.message" for form in FORMS[:2]),
}


def export_session(session: Session, form: str) -> Iterator[str]:
    """Yield the session's lines as pieces of text, each line ended by a line feed.

    What is appended while it runs is not in it: the row was read before.
    """
    if form == "jsonl":
        return _event_lines(session)
    return _conversation_line(session, form)


def name_of(session: Session) -> str:
    """What a session is called outside: its key, or the id that it had first."""
    return (session.key or str(session.pk)).removeprefix(IMPORTED_KEY)


def _event_lines(session: Session) -> Iterator[str]:
    name = name_of(session)
    for event in read_log(session, after_seq=-1, before_seq=1, limit=1).events:
        yield _event_line(session, name, event)
    for event in read_all(session):
        yield _event_line(session, name, event)


def _event_line(session: Session, name: str, event: StoredEvent) -> str:
    line = {
        "session": name,
        "seq": event.seq,
        "id": str(event.event_id),
        "type": _outside_type(session, event),
        "payload": codec.RawJSON(event.payload_text),
        "occurred_at": iso(event.occurred_at),
        "run": str(event.run_id) if event.run_id else None,
        "step": str(event.step_id) if event.step_id else None,
        "actor": event.actor,
        "created_at": iso(event.created_at),
    }
    if event.seq == 0 and (session.key or "").startswith(IMPORTED_KEY):
        line["payload"] = event.payload | {"key": None}
    return codec.dumps(line) + "\n"


def _outside_type(session: Session, event: StoredEvent) -> str:
    """The type under which an import takes the event for what it was.

    What a fork shares with its parent tells of the parent's life, not of its own.
    """
    if 0 < event.seq <= (session.forked_from_seq or 0) and event.type.startswith(
        "session."
    ):
        return f"{IMPORTED_TYPE}{event.type}"
    was = event.type.removeprefix(IMPORTED_TYPE)
    if was.startswith(types.SERVER_PREFIXES) and not was.startswith(
        ("session.", "state.")
    ):
        return was
    return event.type


def _conversation_line(session: Session, form: str) -> Iterator[str]:
    write = openai.write_messages if form == openai.FORM else anthropic.write_messages
    head = _head(session, form)
    drafts: Iterable[Draft] = _drafts(session)
    if form == anthropic.FORM:
        is_native = not _was_read_as(session, form)
        system, drafts = _split_system(_drafts(session), is_native=is_native)
        if system is not None:
            head["system"] = system
    yield codec.dumps(head)[:-1] + (", " if head else "") + '"messages":['
    for index, message in enumerate(write(drafts)):
        yield ("," if index else "") + codec.dumps(message)
    yield "]}\n"


def _was_read_as(session: Session, form: str) -> bool:
    told = session.metadata.get("import")
    return (
        isinstance(told, dict)
        and told.get("format") == form
        and isinstance(told.get("line"), dict)
    )


def _head(session: Session, form: str) -> dict[str, Any]:
    """All of the line but its messages."""
    if _was_read_as(session, form):
        return dict(session.metadata["import"]["line"])
    head = {"id": name_of(session)}
    return head | {"agent": session.agent} if session.agent else head


def _drafts(session: Session) -> Iterator[Draft]:
    for event in read_all(session):
        if event.type in CHAT:
            yield event.type, event.payload


def _split_system(
    drafts: Iterator[Draft], *, is_native: bool
) -> tuple[Any, Iterable[Draft]]:
    """Take the conversation's `system` from the first event, if it is one."""
    first = next(drafts, None)
    if first is None:
        return None, []
    if anthropic.is_system(*first) or (is_native and first[0] == types.MESSAGE_SYSTEM):
        return first[1].get("content"), drafts
    return None, _after(first, drafts)


def _after(first: Draft, rest: Iterator[Draft]) -> Iterator[Draft]:
    yield first
    yield from rest
