"""The working memory of a run: as its session's, in a scope of its own.

Once a run has ended nothing of it is shown, and a sweep deletes it. So the calls that
end runs pay nothing for it. Which runs have a memory is itself known to Redis alone: if
that is lost, so are the entries.
"""

import logging
import time
from collections.abc import Iterator
from uuid import UUID

import redis

from runs_app.models import Run
from runs_app.states import RUN_ENDED
from sessions_app.models import Session
from sessions_app.working_memory import (
    EXPIRED_TOLD,
    MAX_TTL,
    Scope,
    asking_redis,
    end_scope,
)

logger = logging.getLogger(__name__)

# Runs that may have a memory, by the time at which they have none any more.
REGISTER = "agentstate:wm:runs"
REGISTERED_FOR = MAX_TTL + EXPIRED_TOLD  # seconds; noted anew after half of it
BATCH = 500

type Place = tuple[UUID, UUID]  # project, run

_noted: dict[UUID, float] = {}  # time.monotonic() of the last note


def note_memory(scope: Scope) -> None:
    """Note, before it is written to, that a run has a memory."""
    assert scope.run_id is not None
    now = time.monotonic()
    if now - _noted.get(scope.run_id, -REGISTERED_FOR) < REGISTERED_FOR / 2:
        return
    until = time.time() + REGISTERED_FOR
    member = f"{scope.project_id}:{scope.session_id}:{scope.run_id}"
    with asking_redis() as client, client.pipeline(transaction=True) as pipe:
        pipe.zadd(REGISTER, {member: until})
        pipe.expireat(REGISTER, int(until) + 1)
        pipe.execute()
    if len(_noted) >= 10_000:
        _noted.clear()
    _noted[scope.run_id] = now


def expire_run(project_id: UUID, run_id: UUID) -> int:
    """Delete what an ended run holds; return how many entries.

    The fence is the log's last seq: should the run be retried, that is an event, and
    writes after it are let through.
    """
    run = Run.objects.filter(project_id=project_id, id=run_id).first()
    if run is None or run.state not in RUN_ENDED:
        return 0
    session = Session.objects.filter(project_id=project_id, id=run.session_id)
    last_seq = session.values_list("last_seq", flat=True).first()
    if last_seq is None:
        return 0
    return end_scope(Scope(project_id, run.session_id, last_seq, run_id))


def expire_ended_runs() -> int:
    """Delete the memory of all runs that have ended; return how many runs."""
    with asking_redis() as client:
        client.zremrangebyscore(REGISTER, "-inf", time.time())
        return sum(_expire_ended(client, batch) for batch in _batches(client))


def _expire_ended(client: redis.Redis, batch: dict[Place, bytes]) -> int:
    going_on = set(
        Run.objects.filter(
            project_id__in={project for project, _ in batch},
            id__in={run for _, run in batch},
        )
        .exclude(state__in=RUN_ENDED)
        .values_list("id", flat=True)
    )
    ended = {place: m for place, m in batch.items() if place[1] not in going_on}
    for (project_id, run_id), member in ended.items():
        # One that is gone was erased with its session, and its memory with it.
        expire_run(project_id, run_id)
        client.zrem(REGISTER, member)
        _noted.pop(run_id, None)
    return len(ended)


def _batches(client: redis.Redis) -> Iterator[dict[Place, bytes]]:
    batch: dict[Place, bytes] = {}
    for member, _ in client.zscan_iter(REGISTER, count=BATCH):
        project, _, run = member.decode().split(":")
        batch[UUID(project), UUID(run)] = member
        if len(batch) >= BATCH:
            yield batch
            batch = {}
    yield batch
