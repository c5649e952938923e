"""Pages that stand above the apps: the home page, health and metrics."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from agentstate import health
from agentstate.metrics import exposition


@require_GET
def home(request: HttpRequest) -> HttpResponse:
    return render(request, "agentstate/home.html")


@require_GET
def healthz(request: HttpRequest) -> JsonResponse:
    """Alive: this process answers. Says nothing of what it depends on."""
    return JsonResponse({"status": "ok"})


@require_GET
def readyz(request: HttpRequest) -> JsonResponse:
    """Ready, degraded (some calls answer 503) or unavailable (503 here too)."""
    report = health.report()
    unavailable = report["status"] == "unavailable"
    return JsonResponse(report, status=503 if unavailable else 200)


@require_GET
def metrics(request: HttpRequest) -> HttpResponse:
    return HttpResponse(exposition(), content_type="text/plain; version=0.0.4")
