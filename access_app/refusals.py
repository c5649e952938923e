"""What a key tried to change and might not: one audit entry a minute for each thing.

A client that asks again and again is one entry, so that it cannot fill the log.
"""

import logging
import time

from django.db import DatabaseError

from access_app.callers import Caller
from access_app.services import record_audit

logger = logging.getLogger(__name__)

REFUSED = "access.refused"
AGAIN_AFTER_SECONDS = 60.0
NOTED_MAX = 10_000

_noted: dict[tuple[Caller, str, str], float] = {}


def note_refusal(caller: Caller, object: str, method: str, code: str) -> None:
    """Record that `caller` was refused a change of `object`, "kind:id".

    For what is outside the caller's rights (403) or reach (404, which says no more of
    what another owns than of what nobody has). It never raises.
    """
    now = time.monotonic()
    entry = (caller, object, code)
    if now < _noted.get(entry, now):
        return
    if len(_noted) >= NOTED_MAX:
        _noted.clear()
    _noted[entry] = now + AGAIN_AFTER_SECONDS
    try:
        record_audit(
            caller.project_id,
            caller.actor,
            REFUSED,
            object,
            after={"method": method, "code": code},
        )
    except DatabaseError:
        logger.warning("a refusal was not recorded", extra={"refused": object})
