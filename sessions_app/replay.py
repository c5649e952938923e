"""What a session was at any seq, told from its log: reads, no writes.

The state starts from the nearest snapshot, so a replay costs what came since, not the
length of the log.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from django.db.models import Q

from agentstate import codec
from agentstate.json_patch import apply_patch
from sessions_app import event_types as types
from sessions_app.errors import SeqNotFound
from sessions_app.log import LogPage, read_log, segment_at, segments_of
from sessions_app.models import Session, Snapshot, ToolCall
from sessions_app.payloads import whole_texts


class StateAt(NamedTuple):
    """A session's state after some event, and its version then."""

    state: Any
    version: int


class Replay(NamedTuple):
    """A session as it was after event `at_seq`. Conversation oldest first.

    `plan` is JSON: what `register_plan`'s reader makes of the log.
    """

    at_seq: int
    state: StateAt
    conversation: LogPage
    open_tool_calls: list[ToolCall]
    plan: dict[str, Any] | None


type PlanReader = Callable[[Session, int], dict[str, Any] | None]

_plan_reader: PlanReader | None = None


def register_plan(reader: PlanReader) -> None:
    """Have replays tell the plan as well. From AppConfig.ready of the app above.

    `reader` gets a session and a seq of its log.
    """
    global _plan_reader
    _plan_reader = reader


def replay_at(
    session: Session,
    at_seq: int,
    *,
    before_seq: int | None = None,
    limit: int = 100,
) -> Replay:
    """Return the session as it was after event `at_seq`.

    The conversation is its newest `limit` records up to there; `before_seq` pages back.
    Raises SeqNotFound for a number that the log has not reached.
    """
    check_seq(session, at_seq)
    page = read_log(
        session,
        before_seq=min(at_seq + 1, before_seq or at_seq + 1),
        types=types.CONVERSATION_TYPES,
        limit=limit,
        newest_first=True,
    )
    return Replay(
        at_seq,
        state_at(session, at_seq),
        LogPage(page.events[::-1], page.has_more),
        open_calls_at(session, at_seq),
        _plan_reader(session, at_seq) if _plan_reader else None,
    )


def check_seq(session: Session, seq: int) -> None:
    if not 0 <= seq <= session.last_seq:
        raise SeqNotFound(last_seq=session.last_seq)


def state_at(session: Session, at_seq: int) -> StateAt:
    """Return the state after event `at_seq`: the nearest snapshot, then the patches."""
    base = _snapshot_before(session, at_seq)
    state, version = (base.state, base.version) if base else ({}, 0)
    after = base.seq if base else 0
    for payload in _state_changes(session, after, at_seq):
        state = apply_patch(state, payload["patch"])
        version = payload["version"]
    return StateAt(state, version)


def read_ahead(session: Session, at_seq: int) -> None:
    """Have at hand what `state_at` will need from the store, while no row is locked.

    To be called within `kept_at_hand`.
    """
    base = _snapshot_before(session, at_seq)
    for _ in _state_changes(session, base.seq if base else 0, at_seq):
        pass


def _snapshot_before(session: Session, at_seq: int) -> Snapshot | None:
    for segment in reversed(segments_of(session)):
        if segment.first_seq > at_seq and segment.session_id != session.pk:
            continue
        found = (
            Snapshot.objects.filter(
                project_id=session.project_id,
                session_id=segment.session_id,
                seq__lte=min(at_seq, segment.last_seq),
            )
            .order_by("-seq")
            .first()
        )
        if found:
            return found
    return None


def _state_changes(
    session: Session, after_seq: int, up_to: int
) -> Iterator[dict[str, Any]]:
    for segment in segments_of(session):
        if segment.last_seq <= after_seq or segment.first_seq > up_to:
            continue
        changes = (
            segment.events(session.project_id)
            .filter(seq__gt=after_seq, seq__lte=up_to, type=types.STATE_CHANGED)
            .order_by("seq")
            .stored_text()
        )
        for text in whole_texts(session.project_id, changes):
            yield _decoded(text)


def changes_since(session: Session, version: int, most: int = 100) -> list[str]:
    """Return the JSON pointers written since `version`, newest versions first."""
    count = min(session.version - version, most)
    if count <= 0:
        return []
    paths: dict[str, None] = {}
    for segment in reversed(segments_of(session)):
        changes = (
            segment.events(session.project_id)
            .filter(type=types.STATE_CHANGED)
            .order_by("-seq")
            .stored_text()[:count]
        )
        for text in whole_texts(session.project_id, changes):
            payload = _decoded(text)
            if payload["version"] <= version:
                return list(paths)
            paths |= {operation["path"]: None for operation in payload["patch"]}
            count -= 1
    return list(paths)


def open_calls_at(session: Session, at_seq: int) -> list[ToolCall]:
    """Return the tool calls that were without a result after event `at_seq`."""
    return [call for call in unsettled_calls_at(session, at_seq) if not call.result_seq]


def unsettled_calls_at(session: Session, at_seq: int) -> list[ToolCall]:
    """Return the calls that had no result, or a stand-in, after event `at_seq`.

    Their result is what it was then. The session whose segment holds `at_seq` knows
    them all: a fork was given those that were unsettled when it began.
    """
    calls = ToolCall.objects.filter(
        Q(result_seq=None) | Q(result_seq__gt=at_seq) | Q(result_synthetic=True),
        project_id=session.project_id,
        session_id=segment_at(session, at_seq).session_id,
        call_seq__lte=at_seq,
    ).order_by("call_seq")
    for call in calls:
        stand_in = call.result_seq if call.result_synthetic else call.stand_in_seq
        was_there = stand_in is not None and stand_in <= at_seq
        call.result_seq = stand_in if was_there else None
        call.result_synthetic, call.stand_in_seq = was_there, None
    return list(calls)


def _decoded(text: str) -> dict[str, Any]:
    payload: Any = codec.loads(text, max_depth=10_000)
    assert isinstance(payload, dict)
    return payload
