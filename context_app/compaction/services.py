"""Compacting a session's context, and undoing it: the only writers of `context.*`.

The log itself is not touched. What is thought up, by a model or by rule, is thought up
outside of any transaction; then one append, if no other compaction came between.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID

from django.db import connection, transaction

from agentstate.errors import FieldError
from context_app.compaction.active import Active, active_summaries, last_change
from context_app.compaction.extract import extract_summary, with_ledger
from context_app.compaction.llm import SummaryFailed, is_configured, llm_summary
from context_app.compaction.passage import Passage, read_passage
from context_app.errors import (
    CompactedMeanwhile,
    CompactionNotFound,
    CompactionNotLast,
    NothingToCompact,
    SummaryLoses,
)
from context_app.tokens import Counter, configured_counter
from sessions_app import event_types as types
from sessions_app.append import AppendResult, NewEvent, append_events
from sessions_app.log import read_log
from sessions_app.models import Session
from sessions_app.services import get_session

type Method = Literal["given", "llm", "extract"]

KEEP_TURNS = 4  # of the newest turns, that stay as they are
SUMMARY_TOKENS = 1000
# So many summaries stand side by side; the next one takes them all in.
LAYERS_MAX = 6
# What is read for one compaction; a longer log takes several.
EVENTS_MAX = 5000
LOST_SHOWN = 200


@dataclass(frozen=True)
class CompactRequest:
    """What the caller asks for. None leaves it to the method."""

    method: Method | None = None
    summary: str | None = None
    up_to_seq: int | None = None
    keep: frozenset[int] = frozenset()
    keep_last: int | None = None
    preserve_tools: bool = False
    summary_tokens: int | None = None
    force: bool = False
    fallback: bool = True


@dataclass(frozen=True)
class Writer:
    """Who writes, and what an append checks."""

    actor: str
    subject: str | None = None
    lock_token: UUID | None = None


@dataclass
class Compacted:
    """What came of it. `status` failed: nothing was changed, and `reason` says why."""

    status: Literal["compacted", "fallback", "failed"]
    method: Method
    from_seq: int
    up_to_seq: int
    seq: int | None = None
    summary: str = ""
    keep: list[int] = field(default_factory=list)
    lost: list[dict[str, Any]] = field(default_factory=list)
    active: list[int] = field(default_factory=list)
    replaces: list[int] = field(default_factory=list)
    reason: str | None = None


def compact_session(
    project_id: UUID,
    session_id: UUID,
    request: CompactRequest,
    writer: Writer,
    *,
    in_transaction: Callable[[Compacted], None] = lambda compacted: None,
) -> Compacted:
    """Let a summary stand for the oldest part of a session's conversation.

    `in_transaction` runs in the transaction of the append. Raises NothingToCompact,
    SummaryLoses, CompactedMeanwhile, FieldError for options that the method cannot
    honour, and what an append raises.
    """
    session = get_session(project_id, session_id, subject=writer.subject)
    method = request.method or _default_method(request)
    check_options(request, method)
    active = active_summaries(session, session.last_seq)
    passage = _passage(session, active, request, method)
    count = configured_counter()
    compacted = _think(passage, active, request, method, count)
    if compacted.status != "failed":
        _write(session, active, compacted, writer, in_transaction)
    return compacted


def _default_method(request: CompactRequest) -> Method:
    if request.summary is not None:
        return "given"
    return "llm" if is_configured() else "extract"


# Which options a method cannot honour.
NOT_HONOURED: dict[Method, dict[str, str]] = {
    "given": {
        "keep_last": "a given summary says itself how far it reaches: send up_to_seq",
        "summary_tokens": "the summary is given, and is not shortened",
    },
    "llm": {"summary": "send method given, or leave it out"},
    "extract": {"summary": "send method given, or leave it out"},
}
FOR_GIVEN = "only a given summary can lose anything: the others are completed"


def check_options(request: CompactRequest, method: Method) -> None:
    for name, why in NOT_HONOURED[method].items():
        if getattr(request, name) is not None:
            raise FieldError(name, "option_not_honoured", f"method {method}: {why}")
    if request.force and method != "given":
        raise FieldError(
            "force", "option_not_honoured", f"method {method}: {FOR_GIVEN}"
        )
    if request.up_to_seq is not None and request.keep_last is not None:
        raise FieldError(
            "keep_last", "option_not_honoured", "send up_to_seq or keep_last, not both"
        )
    if method == "given" and not (request.summary or "").strip():
        raise FieldError("summary", "required", "method given: send the summary")
    if method == "given" and request.up_to_seq is None:
        raise FieldError("up_to_seq", "required", "say how far the summary reaches")
    if method == "llm" and not is_configured():
        raise FieldError(
            "method",
            "not_configured",
            "set AGENTSTATE_LLM_URL and AGENTSTATE_LLM_MODEL",
        )


def _passage(
    session: Session, active: Active, request: CompactRequest, method: Method
) -> Passage:
    from_seq = active.up_to_seq + 1
    if request.up_to_seq is not None:
        up_to = request.up_to_seq
        if up_to > session.last_seq:
            raise FieldError(
                "up_to_seq", "seq_not_found", f"the log ends at {session.last_seq}"
            )
    else:
        turns = KEEP_TURNS if request.keep_last is None else request.keep_last
        up_to = _before_the_last(session, from_seq, turns)
    if method != "given":
        up_to = _within_reach(session, from_seq, up_to)
    if up_to < from_seq:
        raise NothingToCompact(compacted_up_to=active.up_to_seq)
    for seq in request.keep:
        if not from_seq <= seq <= up_to:
            raise FieldError(
                "keep", "out_of_range", f"{seq} is not between {from_seq} and {up_to}"
            )
    passage = read_passage(
        session,
        from_seq,
        up_to,
        keep=set(request.keep),
        preserve_tools=request.preserve_tools,
    )
    if not passage.lines:
        raise NothingToCompact(compacted_up_to=active.up_to_seq)
    return passage


def _before_the_last(session: Session, from_seq: int, turns: int) -> int:
    """The seq before the newest `turns` turns; a user's message begins each."""
    if turns == 0:
        return session.last_seq
    page = read_log(
        session,
        after_seq=from_seq - 1,
        types=[types.MESSAGE_USER],
        limit=turns,
        newest_first=True,
    )
    if len(page.events) < turns:
        return from_seq - 1
    return page.events[-1].seq - 1


def _within_reach(session: Session, from_seq: int, up_to: int) -> int:
    """At most EVENTS_MAX events, cut before a user's message if there is one."""
    if up_to - from_seq < EVENTS_MAX:
        return up_to
    most = from_seq + EVENTS_MAX - 1
    page = read_log(
        session,
        after_seq=from_seq,
        before_seq=most + 1,
        types=[types.MESSAGE_USER],
        limit=1,
        newest_first=True,
    )
    return page.events[0].seq - 1 if page.events else most


def _think(
    passage: Passage,
    active: Active,
    request: CompactRequest,
    method: Method,
    count: Counter,
) -> Compacted:
    """Find the summary; nothing is written yet, and no connection is held."""
    takes_in = len(active.summaries) >= LAYERS_MAX
    earlier = "\n\n".join(s.text for s in active.summaries) if takes_in else ""
    found = Compacted("compacted", method, passage.from_seq, passage.up_to_seq)
    found.keep = sorted(passage.keep)
    if method == "given":
        assert request.summary is not None
        found.summary = request.summary
        found.lost = passage.losses(found.summary)
        if found.lost and not request.force:
            raise _loses(found.lost)
    else:
        _summarise(found, passage, earlier, request, count)
    if takes_in and found.status != "failed":
        _take_in(found, active, earlier)
    return found


def _summarise(
    found: Compacted,
    passage: Passage,
    earlier: str,
    request: CompactRequest,
    count: Counter,
) -> None:
    if found.method == "llm":
        connection.close()
        try:
            found.summary = with_ledger(llm_summary(passage, "", count), passage)
            return
        except SummaryFailed as exc:
            found.reason = str(exc)
            if not request.fallback:
                found.status = "failed"
                return
            found.status = "fallback"
    tokens = request.summary_tokens or SUMMARY_TOKENS
    found.summary = with_ledger(extract_summary(passage, tokens, count), passage)


def _take_in(found: Compacted, active: Active, earlier: str) -> None:
    """Make the summary stand for what the earlier ones did, too. Word by word: what
    they told was checked, and is not put at risk again."""
    found.summary = f"{earlier}\n\n{found.summary}"
    found.replaces = active.seqs
    found.from_seq = active.summaries[0].from_seq
    kept = {seq for summary in active.summaries for seq in summary.keep}
    found.keep = sorted(kept.union(found.keep))


def _loses(lost: list[dict[str, Any]]) -> SummaryLoses:
    named = ", ".join(str(each["value"]) for each in lost[:5])
    more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
    return SummaryLoses(
        f"The summary does not tell {named}{more}. Nothing was changed.",
        lost=lost[:LOST_SHOWN],
        lost_count=len(lost),
    )


def _write(
    session: Session,
    active: Active,
    found: Compacted,
    writer: Writer,
    in_transaction: Callable[[Compacted], None],
) -> None:
    with transaction.atomic():
        _check_unchanged(session, active)
        result = _append(
            session,
            writer,
            types.CONTEXT_COMPACTED,
            lambda seq: _payload(found, active, seq),
        )
        found.seq = result.last_seq
        found.active = _active_after(found, active, found.seq)
        in_transaction(found)


def _check_unchanged(session: Session, active: Active) -> Session:
    """Lock the session's row; raise CompactedMeanwhile if `active` is outdated."""
    locked = Session.objects.select_for_update(no_key=True).get(
        project_id=session.project_id, id=session.pk
    )
    if last_change(locked) != active.changed_at:
        raise CompactedMeanwhile
    session.last_seq = locked.last_seq
    return locked


def _append(
    session: Session,
    writer: Writer,
    event_type: str,
    payload: Callable[[int], dict[str, Any]],
) -> AppendResult:
    """Append an event whose payload names its own seq; the session's row is locked."""
    seq = session.last_seq + 1
    return append_events(
        session.project_id,
        session.pk,
        [NewEvent(event_type, payload(seq))],
        actor=writer.actor,
        subject=writer.subject,
        lock_token=writer.lock_token,
        expected_seq=session.last_seq,
    )


def _active_after(found: Compacted, active: Active, seq: int) -> list[int]:
    return [*(s for s in active.seqs if s not in found.replaces), seq]


def _payload(found: Compacted, active: Active, seq: int) -> dict[str, Any]:
    return {
        "from_seq": found.from_seq,
        "up_to_seq": found.up_to_seq,
        "summary": found.summary,
        "keep": found.keep,
        "method": found.method,
        "status": found.status,
        "active": _active_after(found, active, seq),
        "replaces": found.replaces,
        "lost": found.lost[:LOST_SHOWN],
        "lost_count": len(found.lost),
    }


@transaction.atomic
def undo_compaction(
    project_id: UUID, session_id: UUID, seq: int, writer: Writer
) -> list[int]:
    """Take the newest compaction back; return the seqs of those then in force.

    What it had taken in is in force again. Appends `context.restored`. Raises
    CompactionNotFound, CompactionNotLast, and what an append raises.
    """
    session = get_session(project_id, session_id, subject=writer.subject)
    active = active_summaries(session, session.last_seq)
    _check_unchanged(session, active)
    if seq not in active.seqs:
        raise CompactionNotFound
    newest = active.summaries[-1]
    if newest.seq != seq:
        raise CompactionNotLast(newest=newest.seq)
    left = [s for s in active.seqs if s != seq] + list(newest.replaces)
    _append(
        session,
        writer,
        types.CONTEXT_RESTORED,
        lambda _: {"undone": seq, "active": left},
    )
    return left
