"""Pages of artifacts, and the links that need no sign-in."""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render

from access_app.pages import PageRequest, project_action, project_page, read_reason
from access_app.roles import Right
from agentstate.api.machines import read_by_machines
from agentstate.api.pagination import paginate
from sessions_app.artifacts.links import artifact_of
from sessions_app.artifacts.quota import limit_project, usage_of
from sessions_app.artifacts.services import delete_artifact, get_artifact
from sessions_app.artifacts.serving import content_response, read_small, reads_as_text
from sessions_app.forms import ArtifactFilters, read_megabytes
from sessions_app.models import Artifact
from sessions_app.services import get_session

LIST_PAGE = 50
PREVIEW_BYTES = 64 * 1024  # of a text; more is for download


@project_page(Right.SEE_PAYLOADS)
def artifact_list(request: PageRequest) -> HttpResponse:
    """The project's artifacts, or those of one session, newest first."""
    project_id = request.visit.project.id
    filters = ArtifactFilters(request.GET)
    shown: dict[str, Any] = {"filters": filters}
    found = Artifact.objects.in_project(project_id)
    if session_id := filters.value("session"):
        shown["agent_session"] = get_session(project_id, session_id)
        found = Artifact.objects.seen_in(shown["agent_session"])
    found = filters.apply(found.live()).select_related("session").defer("metadata")
    params = {"cursor": request.GET.get("cursor"), "limit": LIST_PAGE}
    order = "-seq" if session_id else "-id"
    shown["page"] = paginate(found, params, [order])
    return render(request, "sessions_app/artifact_list.html", shown)


@project_page(Right.SEE_PAYLOADS)
def artifact_page(request: PageRequest, artifact_id: UUID) -> HttpResponse:
    artifact = get_artifact(request.visit.project.id, artifact_id)
    shown: dict[str, Any] = {"artifact": artifact}
    if reads_as_text(artifact.media_type) and artifact.size <= PREVIEW_BYTES:
        data = read_small(artifact, PREVIEW_BYTES)
        shown["is_away"] = data is None
        shown["text"] = None if data is None else data.decode("utf-8", "replace")
    return render(request, "sessions_app/artifact.html", shown)


@project_page(Right.SEE_PAYLOADS)
def artifact_content(request: PageRequest, artifact_id: UUID) -> HttpResponseBase:
    artifact = get_artifact(request.visit.project.id, artifact_id)
    return content_response(request, artifact)


@project_action(Right.STEER)
def artifact_delete(request: PageRequest, artifact_id: UUID) -> HttpResponse:
    visit = request.visit
    delete_artifact(
        visit.project.id,
        artifact_id,
        actor=visit.actor,
        reason=read_reason(request),
    )
    messages.success(request, "The artifact is deleted.")
    return redirect("sessions:artifacts", visit.project.slug)


@project_page(Right.MANAGE)
def storage(request: PageRequest) -> HttpResponse:
    """What the project keeps in the store, and how much it may; a part of settings."""
    template = "_storage.html" if request.htmx else "storage.html"
    usage = usage_of(request.visit.project.id)
    return render(request, f"sessions_app/{template}", {"usage": usage})


@project_action(Right.MANAGE)
def limit_storage(request: PageRequest) -> HttpResponse:
    visit = request.visit
    limit_project(
        visit.project.id,
        read_megabytes(request.POST.get("limit", "")),
        actor=visit.actor,
        reason=read_reason(request),
    )
    messages.success(request, "The limit is changed.")
    return redirect("access:settings", visit.project.slug)


@read_by_machines
def linked_artifact(request: HttpRequest, token: str) -> HttpResponseBase:
    """The bytes behind a link that this server has signed."""
    return content_response(request, artifact_of(token))
