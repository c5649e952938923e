"""Background jobs of runs_app. Any worker process may run them, or none."""

import logging

from procrastinate.contrib.django import app

from runs_app.settling import cancel_orphans, settle_handoffs
from runs_app.sweeps import sweep
from runs_app.working_memory import expire_ended_runs
from sessions_app.errors import WorkingMemoryUnavailable

logger = logging.getLogger(__name__)

ROUNDS = 20
EVERY_TEN_SECONDS = "* * * * * */10"  # seconds come last


@app.periodic(cron=EVERY_TEN_SECONDS)
@app.task(
    name="runs_app.sweep",
    queueing_lock="runs_app.sweep",
    pass_context=False,
)
def sweep_runs(timestamp: int) -> None:
    """Every ten seconds: leases, timers, limits, cancels, charges; until nothing is
    due."""
    for _ in range(ROUNDS):
        swept = sweep()
        if not swept.total:
            return
        logger.info("runs swept", extra=swept._asdict())


@app.periodic(cron=EVERY_TEN_SECONDS)
@app.task(
    name="runs_app.settle_handoffs",
    queueing_lock="runs_app.settle_handoffs",
    pass_context=False,
)
def settle_ended_handoffs(timestamp: int) -> None:
    """Every ten seconds: handoffs whose time is up or whose run has ended on either
    side, and what runs below a run that has failed or was erased."""
    if settled := settle_handoffs():
        logger.info("handoffs settled", extra={"handoffs": settled})
    if cancelled := cancel_orphans():
        logger.info("runs below ended ones cancelled", extra={"runs": cancelled})


@app.periodic(cron="* * * * *")
@app.task(
    name="runs_app.expire_memory",
    queueing_lock="runs_app.expire_memory",
    pass_context=False,
)
def expire_memory(timestamp: int) -> None:
    """Every minute: delete the working memory of runs that have ended."""
    try:
        expired = expire_ended_runs()
    except WorkingMemoryUnavailable:
        return  # the next minute will do, and ended runs show nothing anyway
    if expired:
        logger.info("working memory of ended runs deleted", extra={"runs": expired})
