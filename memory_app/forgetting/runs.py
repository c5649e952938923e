"""What is particular to runs when sessions are forgotten: names, keys, digests."""

from uuid import UUID

from django.db.models import TextField
from django.db.models.functions import Cast

from agentstate import codec
from runs_app.models import EffectRecord, Run, Step
from runs_app.results import result_hash
from sessions_app.models import Event


def run_ids(project_id: UUID, session_ids: list[UUID]) -> list[UUID]:
    """Return the runs of these sessions."""
    runs = Run.objects.filter(project_id=project_id, session_id__in=session_ids)
    return list(runs.values_list("id", flat=True))


def has_effects(project_id: UUID, session_ids: list[UUID]) -> bool:
    """Whether the ledger has effects of these sessions, under keys of the client's."""
    return EffectRecord.objects.filter(
        project_id=project_id, session_id__in=session_ids
    ).exists()


def blank_names(project_id: UUID, session_ids: list[UUID]) -> int:
    """Drop the names that a client gave to runs and steps, as their events do."""
    runs = Run.objects.filter(project_id=project_id, session_id__in=session_ids)
    steps = Step.objects.filter(project_id=project_id, session_id__in=session_ids)
    return int(
        runs.exclude(key=None).update(key=None) + steps.exclude(name="").update(name="")
    )


def rehash_results(project_id: UUID, session_ids: list[UUID]) -> None:
    """Make the digests of results those of what the log holds now.

    A digest of what was forgotten would tell whoever guesses it that it is right.
    """
    steps = Step.objects.filter(
        project_id=project_id,
        session_id__in=session_ids,
        result_seq__isnull=False,
        result_hash__isnull=False,
    )
    for step in steps.only("id", "session_id", "result_seq", "result_hash"):
        assert step.result_seq is not None
        text = (
            Event.objects.filter(
                project_id=project_id,
                session_id=step.session_id,
                seq=step.result_seq,
                # What is in the store has not been changed: that would be in its row.
                blob_id=None,
            )
            .values_list(Cast("payload", TextField()), flat=True)
            .first()
        )
        payload = codec.loads(text, max_depth=10_000) if text else None
        if not isinstance(payload, dict) or "result" not in payload:
            continue
        digest = result_hash(payload["result"])
        if digest != bytes(step.result_hash or b""):
            Step.objects.filter(project_id=project_id, id=step.id).update(
                result_hash=digest
            )
