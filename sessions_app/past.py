"""A session as it was after an event, and what that event did to the state."""

from typing import Any, NamedTuple

from django.db.models import TextField
from django.db.models.functions import Cast

from agentstate import codec
from agentstate.json_patch import apply_patch
from sessions_app import event_types as types
from sessions_app.log import segments_of
from sessions_app.models import Session, ToolCall
from sessions_app.payloads import text_of
from sessions_app.replay import check_seq, open_calls_at, state_at

MISSING = object()


class Change(NamedTuple):
    """One operation of the patch that made the version shown."""

    op: str
    path: str
    before: Any
    after: Any
    has_before: bool
    has_after: bool


class Past(NamedTuple):
    """What the slider shows at `at_seq`. `changed_at` is the state's last change."""

    at_seq: int
    last_seq: int
    state: Any
    version: int
    changed_at: int | None
    changes: list[Change]
    open_tool_calls: list[ToolCall]


def past_of(session: Session, at_seq: int) -> Past:
    """Return the session as it was after `at_seq`. Raises SeqNotFound."""
    check_seq(session, at_seq)
    now = state_at(session, at_seq)
    changed_at, patch = _last_change(session, at_seq)
    before = state_at(session, changed_at - 1).state if changed_at else {}
    return Past(
        at_seq,
        session.last_seq,
        now.state,
        now.version,
        changed_at,
        list(_changes(before, patch)),
        open_calls_at(session, at_seq),
    )


def _last_change(session: Session, at_seq: int) -> tuple[int | None, list[Any]]:
    for segment in reversed(segments_of(session)):
        found = (
            segment.events(session.project_id)
            .filter(seq__lte=at_seq, type=types.STATE_CHANGED)
            .order_by("-seq")
            .values_list("seq", Cast("payload", TextField()), "blob_id")
            .first()
        )
        if found:
            seq, row, blob_id = found
            text = text_of(session.project_id, row, blob_id)
            payload: Any = codec.loads(text, max_depth=10_000)
            return seq, payload["patch"]
    return None, []


def _changes(state: Any, patch: list[Any]) -> list[Change]:
    changes = []
    for operation in patch:
        path = operation["path"]
        before = _at(state, path)
        state = apply_patch(state, [operation])
        after = _at(state, path)
        changes.append(
            Change(
                operation["op"],
                path,
                before,
                after,
                has_before=before is not MISSING and operation["op"] != "add",
                has_after=after is not MISSING and operation["op"] != "remove",
            )
        )
    return changes


def _at(state: Any, pointer: str) -> Any:
    """The value that a JSON pointer names, or MISSING."""
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(state, dict) and key in state:
            state = state[key]
        elif isinstance(state, list) and key.isdigit() and int(key) < len(state):
            state = state[int(key)]
        else:
            return MISSING
    return state
