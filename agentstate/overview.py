"""What a project's first page shows, all read from the database."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone

from access_app.roles import Visit
from agentstate.charts import BarChart, bar_chart
from agentstate.clock import db_now
from sessions_app.activity import events_by_hour
from sessions_app.forms import Span
from sessions_app.models import Session, ToolCall

RECENT = 8
COUNT_MOST = 1000  # past it, figures say "more than"
CHART_HOURS = 24


@dataclass(frozen=True)
class Figure:
    """A number at the top. `count` above `COUNT_MOST` is not counted further."""

    label: str
    count: int
    url: str = ""
    is_bad: bool = False

    @property
    def text(self) -> str:
        return f"{COUNT_MOST:,}+" if self.count > COUNT_MOST else f"{self.count:,}"


@dataclass(frozen=True)
class Overview:
    figures: list[Figure]
    chart: BarChart
    waiting_calls: list[ToolCall]
    recent: list[Session]
    needs: list[Figure] = field(default_factory=list)


def overview_of(visit: Visit) -> Overview:
    now = db_now()
    sessions = Session.objects.in_project(visit.project.id)
    active = sessions.active_between(now - timedelta(hours=1), now + timedelta(hours=1))
    waiting = ToolCall.objects.filter(
        project=visit.project, result_seq=None, awaiting="human"
    )
    hours = events_by_hour(
        visit.project.id, Span(now - timedelta(hours=CHART_HOURS - 1), now)
    )
    chart = bar_chart([(_hour(h.begin), h.events) for h in hours])
    return Overview(
        figures=[
            Figure("events in 24 hours", chart.total),
            Figure("sessions active in the last hour", _count(active)),
            Figure("open sessions", _count(sessions.filter(status="open"))),
        ],
        chart=chart,
        waiting_calls=list(waiting.order_by("id")[:RECENT]),
        recent=list(sessions.defer("state", "metadata").order_by("-id")[:RECENT]),
    )


def _count(rows: "QuerySet[Any]") -> int:
    return len(rows.order_by().values_list("pk")[: COUNT_MOST + 1])


def _hour(at: datetime) -> str:
    return f"{timezone.localtime(at):%a %H:%M %:z}"
