"""Embedding in the background: after a change of the model, or by a remote one.

Works in batches that each commit, so that it can be stopped anywhere and goes on where
it was. Vectors of the old model stay until the new model has all.
"""

import logging
from typing import NamedTuple
from uuid import UUID

import numpy as np
from django.db import transaction
from django.db.models import Exists, OuterRef

from access_app.models import Project
from agentstate.clock import db_now
from agentstate.errors import AppError
from memory_app.embedding.embedders import configured_model
from memory_app.embedding.vectors import embed_facts, mark_failed, store_vectors
from memory_app.models import EmbeddingModel, Fact, FactEmbedding
from memory_app.querysets import FactQuerySet
from memory_app.services import lock_subject

logger = logging.getLogger(__name__)

BATCH = 200


class EmbedReport(NamedTuple):
    """How many facts were embedded just now, how many could not be, and why not."""

    done: int
    failed: int
    error: str = ""


def without_vector(project_id: UUID, model: str) -> FactQuerySet:
    has_vector = FactEmbedding.objects.filter(
        project_id=project_id, memory_id=OuterRef("id"), model=model
    )
    return Fact.objects.in_project(project_id).filter(~Exists(has_vector))


def embed_missing(project_id: UUID, *, batch_size: int = BATCH) -> EmbedReport:
    """Embed every fact that the configured model has no vector of."""
    model = configured_model()
    if model is None:
        return EmbedReport(0, 0)
    done, failed, error = 0, 0, ""
    after: UUID | None = None
    while facts := _next(project_id, model, after, batch_size):
        if after is None:
            # Until this ends: a process that dies here leaves it to the sweep.
            EmbeddingModel.objects.filter(project_id=project_id, model=model).update(
                is_complete=False
            )
        after = facts[-1].id
        try:
            done += _embed_batch(project_id, model, facts)
        except AppError as exc:
            mark_failed(facts, exc.detail)
            failed, error = failed + len(facts), exc.detail
    _report(project_id, model, done, failed, error)
    return EmbedReport(done, failed, error)


def projects_to_embed() -> list[UUID]:
    """The projects that have facts without a vector of the configured model."""
    model = configured_model()
    if model is None:
        return []
    models = EmbeddingModel.objects
    # Where another model has rows too, facts were written while that one was set.
    finished = models.filter(model=model, is_complete=True).exclude(
        project_id__in=models.exclude(model=model).values("project_id")
    )
    waiting = Project.objects.exclude(id__in=finished.values("project_id"))
    found = waiting.filter(
        Exists(Fact.objects.filter(project_id=OuterRef("id")))
    ).values_list("id", flat=True)
    failed = Fact.objects.exclude(embedding_error="").values_list(
        "project_id", flat=True
    )
    return sorted({*found, *failed.distinct()})


def serving_model(project_id: UUID) -> tuple[str | None, int]:
    """Return the model to search the whole project by, and the length of its vectors.

    That is the configured one, unless another has all vectors and that has not yet. The
    length is 0 if there is no vector.
    """
    wanted = configured_model()
    if wanted is None:
        return None, 0
    rows = EmbeddingModel.objects.filter(project_id=project_id)
    found = max(
        rows,
        key=lambda row: (row.is_complete, row.done, row.model == wanted),
        default=None,
    )
    if found is None:
        return wanted, 0
    return found.model, found.dimensions or 0


def _next(
    project_id: UUID, model: str, after: UUID | None, batch_size: int
) -> list[Fact]:
    facts = without_vector(project_id, model).order_by("id")
    if after is not None:
        facts = facts.filter(id__gt=after)
    return list(facts[:batch_size])


def _embed_batch(project_id: UUID, model: str, facts: list[Fact]) -> int:
    """Embed outside of any transaction, then store what has not changed meanwhile."""
    vectors = embed_facts(model, facts)
    texts = {fact.id: fact.fact for fact in facts}
    rows = dict(zip(texts, vectors, strict=True))
    with transaction.atomic():
        versions = {
            subject: lock_subject(project_id, subject)
            for subject in sorted({fact.subject for fact in facts})
        }
        # Read again: what was forgotten while the model worked must not come back.
        here = [
            fact
            for fact in Fact.objects.in_project(project_id).filter(id__in=texts)
            if fact.fact == texts[fact.id]
        ]
        stored = 0
        if here:
            stacked = np.stack([rows[fact.id] for fact in here])
            stored = store_vectors(project_id, model, here, stacked)
        for subject, version in versions.items():
            Fact.objects.in_project(project_id).about(subject).filter(
                id__in=texts
            ).update(subject_version=version)
    return stored


def _report(project_id: UUID, model: str, done: int, failed: int, error: str) -> None:
    row, _ = EmbeddingModel.objects.get_or_create(project_id=project_id, model=model)
    row.done += done
    row.failed = failed
    row.error = error
    row.is_complete = not failed
    row.updated_at = db_now()
    row.save()
    if row.is_complete:
        _drop_others(project_id, model)
    logger.info("facts embedded", extra={"done": done, "failed": failed})


def _drop_others(project_id: UUID, model: str) -> None:
    """Delete the vectors of earlier models: the new one has them all."""
    FactEmbedding.objects.filter(project_id=project_id).exclude(model=model).delete()
    EmbeddingModel.objects.filter(project_id=project_id).exclude(model=model).delete()
