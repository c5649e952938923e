"""Background jobs of memory_app. Their arguments are ids, never texts."""

from uuid import UUID

from procrastinate.contrib.django import app
from procrastinate.exceptions import AlreadyEnqueued

from memory_app.embedding.reembed import embed_missing, projects_to_embed
from memory_app.promotion.services import run_due_promotions, run_promotion
from memory_app.services import expire_facts

BATCH = 500


def defer_embedding(project_id: UUID) -> None:
    """Have the project's facts without a vector embedded, once this commits."""
    from django.db import transaction

    try:
        # A savepoint: the refusal of a second job must not end the caller's work.
        with transaction.atomic():
            embed_project.configure(
                queueing_lock=f"memory_app.embed:{project_id}"
            ).defer(project_id=str(project_id))
    except AlreadyEnqueued:
        pass


@app.task(name="memory_app.embed_project", pass_context=False)
def embed_project(project_id: str) -> None:
    """Embed what the configured model has not embedded yet."""
    embed_missing(UUID(project_id))


@app.periodic(cron="* * * * *")
@app.task(
    name="memory_app.expire_facts",
    queueing_lock="memory_app.expire_facts",
    pass_context=False,
)
def sweep_expired(timestamp: int) -> None:
    """Mark the facts whose time has passed."""
    while expire_facts(BATCH) == BATCH:
        pass


@app.task(name="memory_app.promote_session", pass_context=False)
def promote_session(promotion_id: str) -> None:
    """Read a closed session for facts. The closing transaction defers this."""
    run_promotion(UUID(promotion_id))


@app.periodic(cron="* * * * *")
@app.task(
    name="memory_app.promote_due",
    queueing_lock="memory_app.promote_due",
    pass_context=False,
)
def promote_due(timestamp: int) -> None:
    """Do the promotions that are due again, or that nobody has done."""
    run_due_promotions()


@app.periodic(cron="*/5 * * * *")
@app.task(
    name="memory_app.embed_due",
    queueing_lock="memory_app.embed_due",
    pass_context=False,
)
def embed_due(timestamp: int) -> None:
    """Embed what the configured model has not, in every project."""
    for project_id in projects_to_embed():
        embed_missing(project_id)
