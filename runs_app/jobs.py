"""Background jobs of runs_app. Any worker process may run them, or none."""

import logging

from procrastinate.contrib.django import app

from runs_app.sweeps import sweep

logger = logging.getLogger(__name__)

ROUNDS = 20


@app.periodic(cron="*/10 * * * * *")
@app.task(
    name="runs_app.sweep",
    queueing_lock="runs_app.sweep",
    pass_context=False,
)
def sweep_runs(timestamp: int) -> None:
    """Every ten seconds: leases, timers, limits, cancels, until nothing is due."""
    for _ in range(ROUNDS):
        swept = sweep()
        if not swept.total:
            return
        logger.info("runs swept", extra=swept._asdict())
