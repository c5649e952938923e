"""Vectors of facts in the database: written with the fact, checked for their size."""

import logging
from collections.abc import Iterable, Sequence
from uuid import UUID

import numpy as np
from django.db import connection

from agentstate.errors import AppError
from agentstate.metrics import EMBEDDING_FAILURES
from memory_app.embedding.embedders import (
    Vectors,
    configured_model,
    embed_texts,
    embedder_of,
)
from memory_app.models import EmbeddingModel, Fact

logger = logging.getLogger(__name__)

HEADER_BYTES = 4  # of pgvector's own binary form: dimensions and a reserved word


class DimensionMismatch(AppError):
    """The embedder's vectors have another length than those of this model before."""

    code, status = "dimension_mismatch", 409

    def __init__(self, model: str, expected: int, actual: int) -> None:
        super().__init__(
            f"{model} gave a vector of {actual} dimensions; those stored have "
            f"{expected}. Set another model name, or delete the old vectors.",
            expected=expected,
            actual=actual,
        )


def embed_now(project_id: UUID, facts: Sequence[Fact]) -> None:
    """Embed facts just written, in their transaction, where the embedder is local.

    Whatever goes wrong is written to the facts: they stand, found by their words. A
    remote embedder is left to the job that the caller defers.
    """
    model = configured_model()
    if model is None or not facts:
        return
    try:
        if embedder_of(model).is_local:
            store_vectors(project_id, model, facts, embed_facts(model, facts))
    except AppError as exc:
        mark_failed(facts, exc.detail)


def is_inline() -> bool:
    """Whether facts are embedded as they are written."""
    model = configured_model()
    if model is None:
        return True
    try:
        return embedder_of(model).is_local
    except AppError:
        return False


def embed_facts(model: str, facts: Sequence[Fact]) -> Vectors:
    return embed_texts(model, [fact.fact for fact in facts])


def store_vectors(
    project_id: UUID, model: str, facts: Sequence[Fact], vectors: Vectors
) -> int:
    """Write the vectors of `facts` by `model`; how many. Raises DimensionMismatch."""
    check_dimensions(project_id, model, vectors.shape[1])
    rows = [
        (fact, vector)
        for fact, vector in zip(facts, vectors, strict=True)
        if vector.any()  # a text without a known word has no direction
    ]
    with connection.cursor() as cursor:
        for fact, vector in rows:
            cursor.execute(
                """
                INSERT INTO agent_memory_embeddings AS e (
                    project_id, subject, memory_id, model, is_current, embedding,
                    created_at
                ) VALUES (%s, %s, %s, %s, %s, %s::vector, agentstate_now())
                ON CONFLICT (project_id, memory_id, model) DO UPDATE
                SET embedding = excluded.embedding, is_current = excluded.is_current
                """,
                [
                    project_id,
                    fact.subject,
                    fact.id,
                    model,
                    fact.status == "active",
                    literal(vector),
                ],
            )
    if any(fact.embedding_error for fact in facts):
        Fact.objects.filter(
            project_id=project_id, id__in=[fact.id for fact in facts]
        ).update(embedding_error="")
    return len(rows)


def mark_failed(facts: Iterable[Fact], error: str) -> None:
    for fact in facts:
        EMBEDDING_FAILURES.inc()
        fact.embedding_error = error
        Fact.objects.filter(project_id=fact.project_id, id=fact.id).update(
            embedding_error=error
        )
    logger.warning("facts not embedded", extra={"error": error})


def check_dimensions(project_id: UUID, model: str, dimensions: int) -> None:
    """Raise DimensionMismatch if the project has vectors of another length."""
    expected = _dimensions.get((project_id, model))
    if expected is None:
        row, _ = EmbeddingModel.objects.get_or_create(
            project_id=project_id, model=model, defaults={"dimensions": dimensions}
        )
        expected = row.dimensions or dimensions
        if len(_dimensions) > REMEMBERED_MODELS:
            _dimensions.clear()
        _dimensions[project_id, model] = expected
    if expected != dimensions:
        raise DimensionMismatch(model, expected, dimensions)


# A model's dimensions never change; a row that was rolled back is made again.
_dimensions: dict[tuple[UUID, str], int] = {}
REMEMBERED_MODELS = 10_000


def forget_dimensions() -> None:
    """Make this process read them anew."""
    _dimensions.clear()


def literal(vector: Vectors) -> str:
    """Return the vector as pgvector reads it."""
    return "[" + ",".join(format(value, ".7g") for value in vector.tolist()) + "]"


def from_binary(raw: bytes) -> Vectors:
    """Read what pgvector's vector_send gives: big-endian floats behind a header."""
    return np.frombuffer(raw, dtype=">f4", offset=HEADER_BYTES).astype(np.float32)
