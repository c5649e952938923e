"""What a session's log says its handoffs must hold, for `verify_replay`."""

from collections.abc import Iterator
from typing import Any

from runs_app.models import Handoff
from sessions_app.log import iso, read_log, segments_of
from sessions_app.models import Session
from sessions_app.projection import NOTHING, Difference, compare

FACTS = (
    "run",
    "step",
    "child_session",
    "child_run",
    "agent",
    "depth",
    "expires_at",
)


def handoff_differences(session: Session) -> Iterator[Difference]:
    """Compare the handoffs that a session's runs made with its log."""
    told = _told(session)
    rows = Handoff.objects.filter(project_id=session.project_id, session_id=session.pk)
    for row in rows.order_by("id"):
        path = f"handoffs/{row.id}"
        log = told.pop(str(row.id), NOTHING)
        yield from compare(session.pk, path, log, _row(row))
    for handoff_id, log in told.items():
        yield Difference(session.pk, f"handoffs/{handoff_id}", log, NOTHING)


def _told(session: Session) -> dict[str, Any]:
    found: dict[str, Any] = {}
    # What a fork was given of its parent's log tells of the parent's handoffs.
    after, more = segments_of(session)[-1].first_seq - 1, True
    while more:
        events, more = read_log(
            session, after_seq=after, types=["handoff.*"], limit=500
        )
        for event in events:
            after = event.seq
            _take(found, event.type.partition(".")[2], event.seq, event.payload)
    return found


def _take(
    found: dict[str, Any], status: str, seq: int, payload: dict[str, Any]
) -> None:
    if status == "offered":
        found[payload["handoff"]] = {
            **{name: payload[name] for name in FACTS},
            "status": status,
            "accepted_by": "",
            "offered_seq": seq,
            "accepted_seq": None,
            "ended_seq": None,
        }
        return
    handoff = found[payload["handoff"]]
    handoff["status"] = status
    if status == "accepted":
        handoff |= {"accepted_by": payload["by"], "accepted_seq": seq}
    else:
        handoff["ended_seq"] = seq


def _row(row: Handoff) -> dict[str, Any]:
    return {
        "run": str(row.run_id),
        "step": str(row.step_id),
        "child_session": str(row.child_session_id),
        "child_run": str(row.child_run_id),
        "agent": row.agent,
        "depth": row.depth,
        "expires_at": iso(row.expires_at),
        "status": row.status,
        "accepted_by": row.accepted_by,
        "offered_seq": row.offered_seq,
        "accepted_seq": row.accepted_seq,
        "ended_seq": row.ended_seq,
    }
