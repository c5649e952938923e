"""Promotion: reading a session for facts worth keeping, once for each time it closes.

The closing transaction leaves a row to be done (migration 0004). Whoever works takes it
with a lease, reads outside of any transaction, and applies what it found fact by fact;
what fails is kept with its reason and tried again, and never holds a session up.
"""

import logging
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import transaction

from agentstate.clock import Now, db_now
from agentstate.errors import AppError
from agentstate.ids import new_id
from agentstate.metrics import PROMOTIONS
from memory_app.errors import NoSubject, PromotionNotFound, SubjectForgotten
from memory_app.event_types import MEMORY_PROMOTED
from memory_app.models import Promotion, PromotionStatus
from memory_app.policy import OFF, REVIEW, Policy, policy_of
from memory_app.promotion import llm, rules
from memory_app.promotion.candidates import Candidate, Extraction, Extractor
from memory_app.promotion.reading import Utterance, still_said, utterances
from memory_app.services import (
    FORGOTTEN,
    NewFact,
    Remembered,
    lock_subject,
    promote_fact,
)
from sessions_app.errors import SessionNotFound
from sessions_app.models import Session
from sessions_app.services import append_event, get_session

logger = logging.getLogger(__name__)

ACTOR = "system:promotion"
LEASE = timedelta(minutes=15)
ATTEMPTS = 8
FIRST_DELAY = 30.0  # seconds
LAST_DELAY = 6 * 3600.0
ERROR_MAX = 500
EXTRACTORS: dict[str, Extractor] = {"rules": rules.extract, "llm": llm.extract}


class Undone(Exception):
    """Rolls a dry run back."""


@dataclass
class Result:
    """What became of the candidates."""

    counts: dict[str, int] = field(default_factory=dict)
    facts: list[Remembered] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def count(self, outcome: str) -> None:
        self.counts[outcome] = self.counts.get(outcome, 0) + 1

    def drop(self, cause: str) -> None:
        self.dropped[cause] = self.dropped.get(cause, 0) + 1

    def as_json(self) -> dict[str, Any]:
        return {
            "counts": self.counts,
            "dropped": self.dropped,
            "facts": [str(remembered.fact.id) for remembered in self.facts],
            "notes": list(self.notes),
        }


def run_due_promotions(limit: int = 100) -> int:
    """Do what is due, one after another; return how many were done."""
    done = 0
    while done < limit and (promotion := _claim()) is not None:
        _run(promotion)
        done += 1
    return done


def run_promotion(promotion_id: UUID) -> None:
    """Do this one, if it is due and nobody has it."""
    promotion = _claim(promotion_id)
    if promotion is not None:
        _run(promotion)


@transaction.atomic
def _claim(promotion_id: UUID | None = None) -> Promotion | None:
    due = Promotion.objects.due().select_for_update(skip_locked=True)
    if promotion_id is not None:
        due = due.filter(id=promotion_id)
    promotion = due.order_by("id").first()
    if promotion is None:
        return None
    promotion.status = PromotionStatus.RUNNING
    promotion.attempts += 1
    promotion.lease_until = db_now() + LEASE
    promotion.save(update_fields=["status", "attempts", "lease_until"])
    return promotion


def _run(promotion: Promotion) -> None:
    try:
        session = get_session(promotion.project_id, promotion.session_id)
        policy = policy_of(promotion.project_id)
        name = extractor_name(policy)
        if name == OFF or not session.subject:
            why = "off by policy" if name == OFF else "the session names no subject"
            _finish(promotion, PromotionStatus.SKIPPED, error=why)
            return
        result = promote(session, policy)
        _finish_done(promotion, session, name, result)
    except SessionNotFound:
        _finish(promotion, PromotionStatus.SKIPPED, error="the session was erased")
    except Exception as exc:  # whatever it was must be seen, and tried again
        _fail(promotion, exc)


def extractor_name(policy: Policy) -> str:
    """Return which extractor the project's policy and the settings come to."""
    if policy.extractor:
        return policy.extractor
    return "llm" if settings.LLM_URL else "rules"


def promote(session: Session, policy: Policy) -> Result:
    """Take the session's facts: read it, then remember fact by fact.

    Running it again changes nothing: what is known from the same events is passed over.
    """
    said = utterances(session, with_tools=policy.promote_tool_output)
    extraction = read_facts(said, policy)
    return _apply(session, said, extraction, policy)


def read_facts(said: list[Utterance], policy: Policy) -> Extraction:
    return EXTRACTORS[extractor_name(policy)](said, policy)


def _apply(
    session: Session, said: list[Utterance], extraction: Extraction, policy: Policy
) -> Result:
    by_seq = {utterance.seq: utterance for utterance in said}
    result = Result(notes=extraction.notes)
    for candidate in extraction.candidates:
        new = NewFact(
            subject=session.subject,
            fact=candidate.text,
            key=candidate.key,
            kind=candidate.kind,
            source_kind=candidate.source_kind,
            session=str(session.id),
            agent=session.agent,
            seqs=candidate.seqs,
            confidence=candidate.confidence,
            said_at=max(by_seq[seq].at for seq in candidate.seqs),
        )
        quoted = [by_seq[seq] for seq in candidate.seqs]
        _apply_one(session, new, quoted, _policy_for(candidate, policy), result)
    return result


def _policy_for(candidate: Candidate, policy: Policy) -> Policy:
    if not candidate.wants_review:
        return policy
    return replace(policy, promote={"user": REVIEW, "agent": REVIEW})


def _apply_one(
    session: Session,
    new: NewFact,
    quoted: list[Utterance],
    policy: Policy,
    result: Result,
) -> None:
    if policy.promote.get(new.source_kind, REVIEW) == OFF:
        result.drop("off by policy")
        return
    try:
        found = _promote_quoted(session, new, quoted, policy)
    except SubjectForgotten as exc:
        result.drop(str(exc.extra.get("cause", "forgotten")))
        return
    if found is None:
        result.count("known")
        return
    result.count(found.outcome)
    result.facts.append(found)


@transaction.atomic
def _promote_quoted(
    session: Session, new: NewFact, quoted: list[Utterance], policy: Policy
) -> Remembered | None:
    # The subject first: whoever forgets holds it until all is gone, so what is read
    # from here on is what remains.
    lock_subject(session.project_id, new.subject)
    now = Session.objects.filter(project_id=session.project_id, id=session.pk).first()
    if now is None or now.subject != new.subject:
        raise SubjectForgotten(cause=FORGOTTEN)
    if not all(still_said(now, utterance) for utterance in quoted):
        raise SubjectForgotten(cause=FORGOTTEN)
    return promote_fact(session.project_id, new, actor=ACTOR, policy=policy)


def _finish_done(
    promotion: Promotion, session: Session, extractor: str, result: Result
) -> None:
    with transaction.atomic():
        made = [str(r.fact.id) for r in result.facts if r.is_new]
        if made:
            append_event(
                session.project_id,
                session.id,
                MEMORY_PROMOTED,
                {
                    "promotion": str(promotion.id),
                    "extractor": extractor,
                    "facts": made,
                },
                actor=ACTOR,
            )
        promotion.extractor = extractor
        promotion.result = result.as_json()
        _finish(promotion, PromotionStatus.DONE)


def _finish(promotion: Promotion, status: PromotionStatus, error: str = "") -> None:
    promotion.status = status
    promotion.error = error
    promotion.lease_until = promotion.next_attempt_at = None
    promotion.finished_at = db_now()
    promotion.save()
    PROMOTIONS.labels(status.value).inc()


def _fail(promotion: Promotion, exc: Exception) -> None:
    # An AppError's sentence is ours; another's text might repeat what was said.
    promotion.error = (exc.detail if isinstance(exc, AppError) else type(exc).__name__)[
        :ERROR_MAX
    ]
    logger.warning(
        "promotion failed",
        extra={"promotion": str(promotion.id), "error": type(exc).__name__},
        exc_info=None if isinstance(exc, AppError) else exc,
    )
    promotion.status = PromotionStatus.FAILED
    PROMOTIONS.labels(PromotionStatus.FAILED.value).inc()
    promotion.lease_until = None
    if promotion.attempts < ATTEMPTS:
        promotion.next_attempt_at = db_now() + timedelta(
            seconds=delay_after(promotion.attempts)
        )
    else:
        promotion.next_attempt_at = None
    promotion.save()


def delay_after(attempts: int) -> float:
    """Return the seconds to wait after that many attempts: doubling, to a limit."""
    return float(min(FIRST_DELAY * 2 ** (attempts - 1), LAST_DELAY))


@transaction.atomic
def request_promotion(session: Session) -> Promotion:
    """Return the promotion of the session as it is now, to be done; made if need be."""
    if not session.subject:
        raise NoSubject
    promotion, _ = Promotion.objects.get_or_create(
        project_id=session.project_id,
        session_id=session.id,
        closed_seq=session.last_seq,
        defaults={"id": new_id()},
    )
    defer_promotion(promotion)
    return promotion


def defer_promotion(promotion: Promotion) -> None:
    """Have the promotion done once this transaction commits."""
    from memory_app.jobs import promote_session

    if promotion.status == PromotionStatus.PENDING:
        promote_session.defer(promotion_id=str(promotion.id))


@transaction.atomic
def retry_promotion(project_id: UUID, promotion_id: UUID) -> Promotion:
    """Have a promotion done again, now. Raises PromotionNotFound."""
    promotion = (
        Promotion.objects.in_project(project_id)
        .select_for_update()
        .filter(id=promotion_id)
        .first()
    )
    if promotion is None:
        raise PromotionNotFound
    if promotion.status != PromotionStatus.RUNNING:
        promotion.status = PromotionStatus.PENDING
        promotion.attempts = 0
        promotion.next_attempt_at = None
        promotion.save()
    defer_promotion(promotion)
    return promotion


def preview(session: Session) -> Result:
    """Return what a promotion of the session would do now, and do nothing."""
    if not session.subject:
        raise NoSubject
    policy = policy_of(session.project_id)
    if extractor_name(policy) == OFF:
        return Result(notes=("off by policy",))
    said = utterances(session, with_tools=policy.promote_tool_output)
    extraction = read_facts(said, policy)
    results: list[Result] = []
    try:
        with transaction.atomic():
            results.append(_apply(session, said, extraction, policy))
            raise Undone
    except Undone:
        return results[0]


def failed_promotions() -> int:
    """How many promotions stand failed, in all projects; for the metrics."""
    return Promotion.objects.filter(status=PromotionStatus.FAILED).count()


def overdue_promotions() -> int:
    """How many have been due for more than five minutes."""
    late = Now() - timedelta(minutes=5)
    return Promotion.objects.due().filter(created_at__lt=late).count()
