"""Pages that stand above the apps: a project's overview, health and metrics."""

import hashlib
from functools import cache
from typing import NamedTuple

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import condition
from django.views.decorators.vary import vary_on_headers
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiJsonRenderer, OpenApiYamlRenderer
from drf_spectacular.views import SpectacularSwaggerView

from access_app.pages import PageRequest, project_page
from access_app.roles import Right
from agentstate import health
from agentstate.api.errors import problem_http
from agentstate.api.machines import read_by_machines
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


@read_by_machines
def healthz(request: HttpRequest) -> JsonResponse:
    """Alive: this process answers. Says nothing of what it depends on."""
    return JsonResponse({"status": "ok"})


@read_by_machines
def readyz(request: HttpRequest) -> JsonResponse:
    """Ready, degraded (some calls answer 503) or unavailable (503 here too)."""
    report = health.report()
    unavailable = report["status"] == "unavailable"
    return JsonResponse(report, status=503 if unavailable else 200)


@read_by_machines
def metrics(request: HttpRequest) -> HttpResponse:
    return HttpResponse(exposition(), content_type="text/plain; version=0.0.4")


class DocsView(SpectacularSwaggerView):
    """What the API is, for anyone to read; a key is needed to use it."""

    authentication_classes = []
    permission_classes = []
    http_method_names = ["get", "head"]

    def handle_exception(self, exc: Exception) -> HttpResponse:  # type: ignore[override]
        # Its own renderer writes pages.
        return problem_http(exc)


class Written(NamedTuple):
    text: bytes
    media_type: str
    etag: str


@cache
def written_schema(as_json: bool) -> Written:
    """The API's description, written once a process: it takes half a second."""
    renderer = OpenApiJsonRenderer() if as_json else OpenApiYamlRenderer()
    generator = SchemaGenerator()  # type: ignore[no-untyped-call]
    described = generator.get_schema(request=None, public=True)  # type: ignore[no-untyped-call]
    text = renderer.render(described, renderer_context={})
    digest = hashlib.sha256(text).hexdigest()[:32]
    return Written(text, renderer.media_type, f'"{digest}"')


def _wanted_schema(request: HttpRequest) -> Written:
    """JSON for who asks for it, by `format` or by the header; else YAML."""
    wish = request.GET.get("format")
    return written_schema(
        wish == "json" if wish else "json" in request.headers.get("Accept", "")
    )


@read_by_machines
@vary_on_headers("Accept")
@condition(etag_func=lambda request: _wanted_schema(request).etag)
def schema(request: HttpRequest) -> HttpResponse:
    written = _wanted_schema(request)
    return HttpResponse(written.text, content_type=written.media_type)
