"""Background jobs of sessions_app."""

import logging
from typing import Literal
from uuid import UUID

from procrastinate import RetryStrategy
from procrastinate.contrib.django import app

from sessions_app.services import close_expired_sessions
from sessions_app.working_memory import END_JOB, Scope, end_scope

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
    # While Redis is away: soon at first, then rarely, for longer than an entry lives.
    retry=RetryStrategy(max_attempts=1000, linear_wait=5),
    pass_context=False,
)
def end_working_memory(
    kind: Literal["session", "run"], project_id: str, scope_id: str, fence: int
) -> None:
    """Delete the working memory of what has ended; see `end_after_commit`."""
    dropped = end_scope(Scope(kind, UUID(project_id), UUID(scope_id), fence))
    if dropped:
        logger.info("working memory ended by the job", extra={"dropped": dropped})
