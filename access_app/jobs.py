"""Background jobs of access_app."""

import logging
from importlib import import_module

from django.conf import settings
from procrastinate.contrib.django import app

from access_app.idempotency import delete_expired_idempotency

logger = logging.getLogger(__name__)

BATCH = 10_000
BATCHES = 50  # a run, so that one never overlaps the next by much


@app.periodic(cron="*/10 * * * *")
@app.task(
    name="access_app.sweep_idempotency",
    queueing_lock="access_app.sweep_idempotency",
    pass_context=False,
)
def sweep_idempotency(timestamp: int) -> None:
    """Delete the answers whose day has passed."""
    for _ in range(BATCHES):
        deleted = delete_expired_idempotency(BATCH)
        if deleted:
            logger.info("expired answers deleted", extra={"deleted": deleted})
        if deleted < BATCH:
            return


@app.periodic(cron="17 4 * * *")
@app.task(
    name="access_app.sweep_sign_ins",
    queueing_lock="access_app.sweep_sign_ins",
    pass_context=False,
)
def sweep_sign_ins(timestamp: int) -> None:
    """Delete the sign-ins that have ended."""
    import_module(settings.SESSION_ENGINE).SessionStore.clear_expired()
