"""What an extractor reads of a session: who said what, at which event."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from sessions_app import event_types as types
from sessions_app.log import read_all, read_log
from sessions_app.models import Session

USER, ASSISTANT, TOOL = "user", "assistant", "tool"
ROLES = {types.MESSAGE_USER: USER, types.MESSAGE_ASSISTANT: ASSISTANT}
TEXT_MAX = 20_000  # characters of one event


class Utterance(NamedTuple):
    """Something said: the text of event `seq`, and when it was recorded."""

    seq: int
    role: str
    text: str
    at: datetime


def utterances(session: Session, *, with_tools: bool = False) -> list[Utterance]:
    """Return what was said in the session, in order; the system's prompt is not."""
    return list(_spoken(session, with_tools))


def _spoken(session: Session, with_tools: bool) -> Iterator[Utterance]:
    for event in read_all(session):
        role = ROLES.get(event.type)
        if event.type == types.TOOL_RESULT and with_tools:
            role = TOOL
        if role is None:
            continue
        text = text_of(event.payload.get("content"))
        if text.strip():
            yield Utterance(event.seq, role, text[:TEXT_MAX], event.created_at)


def still_said(session: Session, utterance: Utterance) -> bool:
    """Whether the log still holds what was read of it: it may have been forgotten."""
    page = read_log(session, after_seq=utterance.seq - 1, limit=1)
    return any(
        event.seq == utterance.seq
        and text_of(event.payload.get("content"))[:TEXT_MAX] == utterance.text
        for event in page.events
    )


def text_of(content: Any) -> str:
    """Return the text of a message's content, a string or a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        return "\n".join(part for part in parts if isinstance(part, str))
    return ""
