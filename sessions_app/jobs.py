"""Background jobs of sessions_app."""

import logging
from uuid import UUID

from procrastinate import RetryStrategy
from procrastinate.contrib.django import app

from sessions_app.artifacts.blobs import remove_strays
from sessions_app.artifacts.quota import fold_counts
from sessions_app.errors import ContentMissing, StorageUnavailable
from sessions_app.moving import move_large_payloads
from sessions_app.services import close_expired_sessions
from sessions_app.working_memory import END_JOB, Scope, end_scope, erase_scopes

logger = logging.getLogger(__name__)

BATCH = 500
BATCHES = 100  # a run, so that one never overlaps the next by much


@app.periodic(cron="* * * * *")
@app.task(
    name="sessions_app.close_expired",
    queueing_lock="sessions_app.close_expired",
    pass_context=False,
)
def close_expired(timestamp: int) -> None:
    """Close the sessions whose `expires_at` has passed."""
    for _ in range(BATCHES):
        closed = close_expired_sessions(BATCH)
        if closed:
            logger.info("expired sessions closed", extra={"closed": closed})
        if closed < BATCH:
            return


@app.task(
    name=END_JOB,
    # While Redis is away: soon at first, then rarely, for as long as entries live.
    retry=RetryStrategy(max_attempts=1000, linear_wait=5),
    pass_context=False,
)
def end_working_memory(project_id: str, session_id: str, fence: int | None) -> None:
    """Delete the memory of a session that was closed; without `fence`, erased."""
    project, session = UUID(project_id), UUID(session_id)
    if fence is None:
        dropped = erase_scopes(project, session)
    else:
        dropped = end_scope(Scope(project, session, fence))
    if dropped:
        logger.info("working memory ended by the job", extra={"dropped": dropped})


@app.periodic(cron="* * * * *")
@app.task(
    name="sessions_app.remove_strays",
    queueing_lock="sessions_app.remove_strays",
    pass_context=False,
)
def remove_stray_objects(timestamp: int) -> None:
    """Remove stored objects that nothing refers to: deleted, or of broken uploads."""
    try:
        removed = remove_strays()
    except (StorageUnavailable, ContentMissing):
        return  # logged where it failed; again in a minute
    if removed:
        logger.info("stored objects removed", extra={"removed": removed})


@app.periodic(cron="*/10 * * * *")
@app.task(
    name="sessions_app.fold_counts",
    queueing_lock="sessions_app.fold_counts",
    pass_context=False,
)
def fold_stored_counts(timestamp: int) -> None:
    """Keep the counts of what projects store short."""
    fold_counts()


@app.periodic(cron="* * * * *")
@app.task(
    name="sessions_app.move_payloads",
    queueing_lock="sessions_app.move_payloads",
    pass_context=False,
)
def move_payloads(timestamp: int) -> None:
    """Move large payloads that were written to their rows into the store."""
    if moved := move_large_payloads():
        logger.info("large payloads moved to the store", extra={"moved": moved})
