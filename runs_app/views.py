"""Pages of runs: the list, one run, the inbox of what needs a person, workers."""

from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.http import HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse

from access_app.pages import (
    PageRequest,
    back,
    project_action,
    project_page,
    read_reason,
)
from access_app.roles import Right
from access_app.saved_views import views_of
from agentstate import codec
from agentstate.api.pagination import paginate
from agentstate.errors import AppError, FieldError
from runs_app import overview
from runs_app.branches import tree_of
from runs_app.bulk import ACTIONS
from runs_app.errors import RunNotFound, StepNotFound
from runs_app.forms import VIEWS, RunFilters
from runs_app.models import Run, Step, StepWait
from runs_app.reads import spent_by, why_run_waits
from runs_app.steering import (
    BULK_MOST,
    DECISIONS,
    decide_step,
    repeat_run,
    steer_run,
    steer_runs,
)
from runs_app.timeline import decisions_for, timeline_of
from sessions_app.outline import read_outline

LIST_PAGE = 50
STEPS_PAGE = 100
LOG_SHOWN = 20
INBOX_PAGE = 50


@project_page(Right.SEE_SESSIONS)
def run_list(request: PageRequest) -> HttpResponse:
    filters = RunFilters(request.GET)
    found = filters.apply(Run.objects.in_project(request.visit.project.id))
    params = {"cursor": request.GET.get("cursor"), "limit": LIST_PAGE}
    page = paginate(found.select_related("session"), params, ["-id"])
    kept = request.GET.copy()
    kept.pop("cursor", None)
    shown = {
        "filters": filters,
        "page": page,
        "views": [(name, q, _same_query(q, kept)) for name, q in VIEWS],
        "saved_views": views_of(request.visit, "runs", kept),
        "filter_query": kept.urlencode(),
        "bulk_actions": list(ACTIONS),
    }
    template = "_run_rows.html" if request.htmx else "run_list.html"
    return render(request, f"runs_app/{template}", shown)


def _same_query(query: str, kept: QueryDict) -> bool:
    return sorted(QueryDict(query).lists()) == sorted(kept.lists())


@project_page(Right.STEER)
def bulk(request: PageRequest) -> HttpResponse:
    """How many runs of the filter an action would reach, and the form to do it."""
    filters = RunFilters(request.GET)
    action = request.GET.get("action", "")
    found = filters.apply(Run.objects.in_project(request.visit.project.id))
    counted = steer_runs(
        request.visit.project.id,
        found,
        action,
        dry_run=True,
        actor=request.visit.actor,
        reason="",
    )
    shown = {"counted": counted, "action": action, "most": BULK_MOST}
    return render(request, "runs_app/bulk.html", shown)


@project_action(Right.STEER)
def do_bulk(request: PageRequest) -> HttpResponse:
    filters = RunFilters(request.GET)
    visit = request.visit
    result = steer_runs(
        visit.project.id,
        filters.apply(Run.objects.in_project(visit.project.id)),
        request.GET.get("action", ""),
        dry_run=False,
        actor=visit.actor,
        reason=read_reason(request),
    )
    refused = sum(result.refused.values())
    more = ", there are more" if result.has_more else ""
    messages.success(request, f"Done: {result.done}. Refused: {refused}{more}.")
    return redirect(_list_url(request))


def _list_url(request: PageRequest) -> str:
    kept = [(name, value) for name, value in _pairs(request.GET) if name != "action"]
    url = reverse("runs:list", args=[request.visit.project.slug])
    return f"{url}?{urlencode(kept)}"


def _pairs(query: QueryDict) -> list[tuple[str, str]]:
    return [(name, value) for name, values in query.lists() for value in values]


@project_page(Right.SEE_SESSIONS)
def run_page(request: PageRequest, run_id: UUID) -> HttpResponse:
    shown = _run_shown(request, run_id)
    if not request.htmx:
        shown["log"] = read_outline(
            shown["agent_session"], limit=LOG_SHOWN, newest=True
        )
    template = "_run.html" if request.htmx else "run.html"
    return render(request, f"runs_app/{template}", shown)


def _run_shown(request: PageRequest, run_id: UUID) -> dict[str, Any]:
    project_id = request.visit.project.id
    run = Run.objects.in_project(project_id).filter(id=run_id).first()
    if run is None:
        raise RunNotFound
    first = _number(request.GET.get("from"))
    steps = Step.objects.of_run(project_id, run_id).filter(index__gte=first)
    found = list(steps.order_by("index")[: STEPS_PAGE + 1])
    return {
        "run": run,
        "agent_session": run.session,
        "timeline": timeline_of(run, found[:STEPS_PAGE]),
        "next_step": found[STEPS_PAGE].index if len(found) > STEPS_PAGE else None,
        "why": why_run_waits(run),
        "spent": spent_by(project_id, [run_id])[run_id],
        "tree": tree_of(run),
        "actions": [
            name for name, (_, states) in ACTIONS.items() if run.state in states
        ],
    }


def _number(text: str | None) -> int:
    """An index in a plan; what is none reads as the first."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 9):
        return 0
    return int(text)


@project_action(Right.STEER)
def steer(request: PageRequest, run_id: UUID) -> HttpResponse:
    action = request.POST.get("action", "")
    state = steer_run(
        request.visit.project.id,
        run_id,
        action,
        actor=request.visit.actor,
        reason=read_reason(request),
    )
    messages.success(request, f"The run is {state}.")
    return back(request)


@project_action(Right.STEER)
def repeat(request: PageRequest, run_id: UUID) -> HttpResponse:
    made = repeat_run(
        request.visit.project.id,
        run_id,
        _number(request.POST.get("from_step")),
        actor=request.visit.actor,
        reason=read_reason(request),
        confirm_repeat=request.POST.get("confirm_repeat") == "on",
    )
    messages.success(request, "This is the new run.")
    return redirect("runs:page", request.visit.project.slug, made.id)


@project_action(Right.STEER)
def decide(request: PageRequest, step_id: UUID) -> HttpResponse:
    """Approve, reject, settle or skip a step; `value` is JSON, where one is needed."""
    text = request.POST.get("value", "").strip()
    value = _value(text)
    decision = request.POST.get("decision", "")
    state = decide_step(
        request.visit.project.id,
        step_id,
        decision,
        actor=request.visit.actor,
        reason=read_reason(request),
        value=value,
        has_value=bool(text),
    )
    said = DECISIONS[decision].replace("_", " ").capitalize()
    messages.success(request, f"{said}. The step is {state.replace('_', ' ')}.")
    return back(request)


def _value(text: str) -> Any:
    if not text:
        return None
    try:
        return codec.loads(text)
    except AppError as exc:
        said = exc.detail.replace("The body", "The text", 1)
        raise FieldError("", exc.code, said) from exc


@project_page(Right.SEE_SESSIONS)
def inbox(request: PageRequest) -> HttpResponse:
    project_id = request.visit.project.id
    counts = overview.waiting_for_people(project_id)
    kind = request.GET.get("kind", "")
    if kind not in counts:
        kind = next((name for name, count in counts.items() if count), "approval")
    waits = StepWait.objects.filter(project_id=project_id, kind=kind)
    params = {"cursor": request.GET.get("cursor"), "limit": INBOX_PAGE}
    page = paginate(waits, params, ["step_id"])
    ids = [wait.step_id for wait in page.items]
    steps = Step.objects.filter(project_id=project_id, id__in=ids)
    by_id = {step.id: step for step in steps.select_related("run", "session")}
    waiting = [
        (wait, by_id[wait.step_id], decisions_for(by_id[wait.step_id]))
        for wait in page.items
        if wait.step_id in by_id
    ]
    shown = {"kind": kind, "counts": counts, "waiting": waiting, "next": page.next}
    template = "_inbox.html" if request.htmx else "inbox.html"
    return render(request, f"runs_app/{template}", shown)


@project_page(Right.SEE_SESSIONS)
def workers(request: PageRequest) -> HttpResponse:
    project_id = request.visit.project.id
    shown = {
        "workers": overview.workers_of(project_id),
        "queues": overview.queues_by_tool(project_id),
    }
    template = "_workers.html" if request.htmx else "workers.html"
    return render(request, f"runs_app/{template}", shown)


@project_page(Right.SEE_SESSIONS)
def step_page(request: PageRequest, step_id: UUID) -> HttpResponse:
    """Where a step's link leads: its run, at the step."""
    steps = Step.objects.filter(project_id=request.visit.project.id, id=step_id)
    step = steps.first()
    if step is None:
        raise StepNotFound
    first = step.index // STEPS_PAGE * STEPS_PAGE
    url = reverse("runs:page", args=[request.visit.project.slug, step.run_id])
    return redirect(f"{url}?from={first}#step-{step.index}")
