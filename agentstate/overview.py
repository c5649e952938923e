"""What a project's first page shows, all read from the database."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.urls import reverse
from django.utils import timezone

from access_app.roles import Right, Visit
from agentstate.charts import BarChart, bar_chart
from agentstate.clock import db_now
from memory_app.models import Fact
from runs_app import overview as runs
from runs_app.models import Run
from runs_app.overview import count_at_most
from sessions_app.activity import events_by_hour
from sessions_app.forms import Span
from sessions_app.models import Session, ToolCall

RECENT = 8
CHART_HOURS = 24
NEEDS = (
    ("approval", "to approve"),
    ("in_doubt", "in doubt: has it happened?"),
    ("hold", "on hold after the last try"),
)


@dataclass(frozen=True)
class Figure:
    """A number at the top; `count` is exact up to a thousand."""

    label: str
    count: int
    url: str = ""
    is_bad: bool = False
    since: datetime | None = None


@dataclass(frozen=True)
class Overview:
    figures: list[Figure]
    needs: list[Figure]
    waiting_calls: list[ToolCall]
    events: BarChart
    runs: BarChart
    failures: BarChart
    middle_seconds: float | None  # of the runs that ended in the last hours
    failed_runs: list[Run]
    recent: list[Session]


def overview_of(visit: Visit) -> Overview:
    now = db_now()
    project_id = visit.project.id
    first = timezone.localtime(now) - timedelta(hours=CHART_HOURS - 1)
    # Whole hours: counts of those that are over need no counting again.
    into_hour = timedelta(
        minutes=first.minute, seconds=first.second, microseconds=first.microsecond
    )
    day = Span(now - timedelta(hours=CHART_HOURS - 1) - into_hour, now)
    sessions = Session.objects.in_project(project_id)
    calls = ToolCall.objects.filter(project=visit.project, awaiting="human")
    hours = runs.runs_by_hour(project_id, day.begin, now + timedelta(seconds=1))
    failed = Run.objects.in_project(project_id).filter(state="failed")
    middles = [hour.seconds for hour in hours if hour.seconds is not None]
    return Overview(
        figures=list(_figures(visit, now)),
        needs=list(_needs(visit)),
        waiting_calls=list(calls.filter(result_seq=None).order_by("id")[:RECENT]),
        events=bar_chart(
            [(_hour(h.begin), h.events) for h in events_by_hour(project_id, day)]
        ),
        runs=bar_chart([(_hour(h.begin), h.runs) for h in hours]),
        failures=bar_chart([(_hour(h.begin), h.failed) for h in hours]),
        middle_seconds=middles[-1] if middles else None,
        failed_runs=list(failed.order_by("-id")[:RECENT]),
        recent=list(sessions.defer("state", "metadata").order_by("-id")[:RECENT]),
    )


def _figures(visit: Visit, now: datetime) -> "list[Figure]":
    project_id, slug = visit.project.id, visit.project.slug
    listed = reverse("runs:list", args=[slug])
    queue = runs.queue_of(project_id)
    failed = runs.failed_since(project_id, now - timedelta(hours=24))
    active = Session.objects.in_project(project_id).active_between(
        now - timedelta(hours=1), now + timedelta(hours=1)
    )
    return [
        Figure(
            "runs at work",
            runs.runs_in(project_id, "running"),
            f"{listed}?state=running",
        ),
        Figure(
            "runs waiting",
            runs.runs_in(project_id, "waiting", "paused"),
            f"{listed}?state=waiting&state=paused",
        ),
        Figure(
            "steps ready for a worker",
            queue.depth,
            reverse("runs:workers", args=[slug]),
            since=queue.oldest,
        ),
        Figure("runs failed in 24 hours", failed, f"{listed}?state=failed", failed > 0),
        Figure("sessions active in the last hour", count_at_most(active)),
    ]


def _needs(visit: Visit) -> "list[Figure]":
    facts = Fact.objects.in_project(visit.project.id).filter(status="proposed")
    review = count_at_most(facts) if visit.may(Right.SEE_MEMORY) else 0
    waiting = runs.waiting_for_people(visit.project.id)
    inbox = reverse("runs:inbox", args=[visit.project.slug])
    memory = reverse("memory:memory", args=[visit.project.slug])
    needs = [Figure("facts to review", review, f"{memory}?view=review")]
    return (needs if review else []) + [
        Figure(
            f"step{'' if waiting[kind] == 1 else 's'} {text}",
            waiting[kind],
            f"{inbox}?kind={kind}",
        )
        for kind, text in NEEDS
        if waiting[kind]
    ]


def _hour(at: datetime) -> str:
    return f"{timezone.localtime(at):%a %H:%M %:z}"
