"""Pages of access: signing in, the projects of a person, settings, the audit log."""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.auth import login, logout
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)

from access_app.models import ApiKey, AuditEntry, Member, Project, Role
from access_app.pages import (
    PageRequest,
    back,
    project_action,
    project_page,
    read_reason,
    to_sign_in,
)
from access_app.roles import HIDE_FROM_VIEWERS, Right
from access_app.scopes import SCOPES
from access_app.services import (
    add_member,
    change_settings,
    create_key,
    remove_member,
    revoke_key,
    set_role,
)
from access_app.sign_in import check_password
from agentstate.api.pagination import paginate
from agentstate.errors import AppError, FieldError

PROJECTS_SHOWN = 200
KEYS_SHOWN = 200
AUDIT_PAGE = 50
AUDIT_FILTERS = ("actor", "action", "object")


@never_cache
@sensitive_post_parameters("password")
@require_http_methods(["GET", "HEAD", "POST"])
def sign_in(request: HttpRequest) -> HttpResponse:
    """The form, and what it sends. Goes on to `next`, if that is one of our pages."""
    target = _safe_next(request)
    if request.user.is_authenticated:
        return HttpResponseRedirect(target)
    if request.method != "POST":
        return render(request, "access_app/sign_in.html", {"next": target})
    name = request.POST.get("username", "")[:150]
    try:
        user = check_password(request, name, request.POST.get("password", ""))
    except AppError as exc:
        shown = {"next": target, "username": name, "refusal": exc.detail}
        return render(request, "access_app/sign_in.html", shown, status=exc.status)
    login(request, user)
    return HttpResponseRedirect(target)


def _safe_next(request: HttpRequest) -> str:
    url = request.POST.get("next") or request.GET.get("next", "")
    if url_has_allowed_host_and_scheme(url, {request.get_host()}, request.is_secure()):
        return url
    return reverse("home")


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    logout(request)
    return redirect("sign-in")


@never_cache
@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """The project, if the person has one; a choice if there are several."""
    if not isinstance(request.user, User):
        return to_sign_in(request)
    projects = Project.objects.visible_to(request.user).order_by("name")
    shown = list(projects[:PROJECTS_SHOWN])
    if len(shown) == 1:
        return redirect("overview", slug=shown[0].slug)
    return render(request, "access_app/projects.html", {"listed": shown})


@project_page(Right.MANAGE)
def settings_page(request: PageRequest) -> HttpResponse:
    return render(request, "access_app/settings.html", _settings_shown(request))


def _settings_shown(request: PageRequest) -> dict[str, Any]:
    project = request.visit.project
    keys = ApiKey.objects.in_project(project.id).with_validity()
    return {
        "members": Member.objects.in_project(project.id).order_by("user__username"),
        "keys": keys.order_by("-created_at", "-id")[:KEYS_SHOWN],
        "roles": Role.values,
        "scopes": SCOPES,
        "hides_payloads": project.settings.get(HIDE_FROM_VIEWERS) is True,
    }


@project_action(Right.MANAGE)
def change_policies(request: PageRequest) -> HttpResponse:
    hides = request.POST.get("hide_payloads") == "on"
    change_settings(
        request.visit.project.id,
        {HIDE_FROM_VIEWERS: hides},
        actor=request.visit.actor,
        reason=read_reason(request),
    )
    messages.success(request, "The policies are changed.")
    return back(request)


@project_action(Right.MANAGE)
def make_key(request: PageRequest) -> HttpResponse:
    """Make a key and show it, in this one answer that no cache keeps."""
    made = create_key(
        request.visit.project,
        scopes=request.POST.getlist("scopes"),
        name=request.POST.get("name", "").strip()[:200],
        subject=request.POST.get("subject", "").strip()[:255] or None,
        actor=request.visit.actor,
        reason=read_reason(request),
    )
    shown = _settings_shown(request) | {"new_key": made}
    response = render(request, "access_app/settings.html", shown, status=201)
    response["Cache-Control"] = "no-store"
    return response


@project_action(Right.MANAGE)
def revoke(request: PageRequest, key_id: UUID) -> HttpResponse:
    visit = request.visit
    key = revoke_key(
        visit.project.id, key_id, actor=visit.actor, reason=read_reason(request)
    )
    messages.success(request, f"Revoked: {key}")
    return back(request)


@project_action(Right.MANAGE)
def invite(request: PageRequest) -> HttpResponse:
    name = request.POST.get("username", "").strip()
    user = User.objects.filter(username=name).first()
    if user is None:
        raise FieldError("", "unknown_user", f"There is no account named {name!r}.")
    add_member(
        request.visit.project.id,
        user,
        request.POST.get("role", ""),
        actor=request.visit.actor,
        reason=read_reason(request),
    )
    messages.success(request, f"{name} is a member now.")
    return back(request)


@project_action(Right.MANAGE)
def change_role(request: PageRequest, member_id: int) -> HttpResponse:
    visit, reason = request.visit, read_reason(request)
    role = request.POST.get("role", "")
    if role == "remove":
        remove_member(visit.project.id, member_id, actor=visit.actor, reason=reason)
        messages.success(request, "The member is removed.")
    else:
        set_role(visit.project.id, member_id, role, actor=visit.actor, reason=reason)
        messages.success(request, "The role is changed.")
    return back(request)


@project_page(Right.SEE_AUDIT)
def audit(request: PageRequest) -> HttpResponse:
    wanted = {n: request.GET[n] for n in AUDIT_FILTERS if request.GET.get(n)}
    entries = AuditEntry.objects.in_project(request.visit.project.id).filter(**wanted)
    params = {"cursor": request.GET.get("cursor"), "limit": AUDIT_PAGE}
    page = paginate(entries, params, ("-created_at", "-id"))
    return render(request, "access_app/audit.html", {"page": page, "wanted": wanted})
