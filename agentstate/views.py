"""Pages that stand above the apps: a project's overview, health and metrics."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_safe

from access_app.pages import PageRequest, project_page
from access_app.roles import Right
from agentstate import health
from agentstate.metrics import exposition
from agentstate.overview import overview_of


@project_page(None)
def overview(request: PageRequest) -> HttpResponse:
    """The project's first page; memory for those who see nothing else of it."""
    if not request.visit.may(Right.SEE_SESSIONS):
        return redirect("memory:memory", request.visit.project.slug)
    template = "_overview.html" if request.htmx else "overview.html"
    shown = {"overview": overview_of(request.visit)}
    return render(request, f"agentstate/{template}", shown)


@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """Alive: this process answers. Says nothing of what it depends on."""
    return JsonResponse({"status": "ok"})


@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """Ready, degraded (some calls answer 503) or unavailable (503 here too)."""
    report = health.report()
    unavailable = report["status"] == "unavailable"
    return JsonResponse(report, status=503 if unavailable else 200)


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    return HttpResponse(exposition(), content_type="text/plain; version=0.0.4")
