"""Background jobs of sessions_app."""

import logging

from procrastinate.contrib.django import app

from sessions_app.services import close_expired_sessions

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
