"""How the runs of a project are doing: counts that stay cheap, and hours of a day."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db import connection
from django.db.models import Count, Max, Min, QuerySet
from django.utils import timezone

from agentstate.ids import first_id_at
from runs_app.models import ReadyStep, Run, StepLease, StepWait

COUNT_MOST = 1000
TOOLS_SHOWN = 50
WORKERS_SHOWN = 200
PERSONAL = ("approval", "hold", "in_doubt")


class Queue(NamedTuple):
    """What may be claimed now. `oldest` is since when its first waits."""

    depth: int
    oldest: datetime | None


class ToolQueue(NamedTuple):
    tool: str
    agent: str
    depth: int
    oldest: datetime


class WorkerRow(NamedTuple):
    """A worker that holds steps: how many, since when, and until when at least."""

    worker: str
    held: int
    since: datetime
    first_until: datetime


@dataclass(frozen=True)
class RunHour:
    begin: datetime
    runs: int
    failed: int
    seconds: float | None  # the middle duration of those that ended


def count_at_most(rows: "QuerySet[Any]", most: int = COUNT_MOST) -> int:
    """Count rows up to `most` + 1: a figure costs the same in a table of millions."""
    return len(rows.order_by().values_list("pk")[: most + 1])


def runs_in(project_id: UUID, *states: str) -> int:
    return count_at_most(Run.objects.in_project(project_id).filter(state__in=states))


def failed_since(project_id: UUID, at: datetime) -> int:
    """Runs begun since `at` that failed; by their ids, which an index holds."""
    failed = Run.objects.in_project(project_id).filter(state="failed")
    return count_at_most(failed.filter(id__gte=first_id_at(at)))


def queue_of(project_id: UUID) -> Queue:
    ready = ReadyStep.objects.filter(project_id=project_id)
    oldest = ready.order_by("rank", "id").values_list("since", flat=True).first()
    return Queue(count_at_most(ready), oldest)


def queues_by_tool(project_id: UUID) -> list[ToolQueue]:
    rows = (
        ReadyStep.objects.filter(project_id=project_id)
        .values_list("tool", "agent")
        .annotate(depth=Count("id"), oldest=Min("since"))
        .order_by("oldest")[:TOOLS_SHOWN]
    )
    return [ToolQueue(*row) for row in rows]


def workers_of(project_id: UUID) -> list[WorkerRow]:
    rows = (
        StepLease.objects.filter(project_id=project_id)
        .values_list("worker")
        .annotate(
            held=Count("step_id"),
            since=Max("claimed_at"),
            until=Min("lease_until"),
        )
        .order_by("worker")[:WORKERS_SHOWN]
    )
    return [WorkerRow(*row) for row in rows]


def waiting_for_people(project_id: UUID) -> dict[str, int]:
    """How many steps wait for a person, by why."""
    waits = StepWait.objects.filter(project_id=project_id)
    return {kind: count_at_most(waits.filter(kind=kind)) for kind in PERSONAL}


def runs_by_hour(project_id: UUID, begin: datetime, end: datetime) -> list[RunHour]:
    """Return each hour of the reader's clock with the runs that were made in it."""
    with connection.cursor() as cursor:
        cursor.execute(
            BY_HOUR,
            [
                timezone.get_current_timezone_name(),
                project_id,
                first_id_at(begin),
                first_id_at(end),
            ],
        )
        found = {at: (runs, failed, middle) for at, runs, failed, middle in cursor}
    hours = []
    local = timezone.localtime(begin)
    at = begin - timedelta(
        minutes=local.minute, seconds=local.second, microseconds=local.microsecond
    )
    while at < end:
        hours.append(RunHour(at, *found.get(at, (0, 0, None))))
        at += timedelta(hours=1)
    return hours


BY_HOUR = """
SELECT date_trunc('hour', created_at, %s), count(*),
       count(*) FILTER (WHERE state = 'failed'),
       percentile_cont(0.5) WITHIN GROUP (
           ORDER BY extract(epoch FROM ended_at - created_at))
FROM agent_runs WHERE project_id = %s AND id >= %s AND id < %s GROUP BY 1
"""
