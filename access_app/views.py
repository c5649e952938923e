"""Pages of access: signing in, the projects of a person, settings, the audit log."""

from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import login, logout
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
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

from access_app import single_sign_on
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
from access_app.saved_views import delete_view, save_view
from access_app.scopes import SCOPES
from access_app.services import (
    add_member,
    change_settings,
    create_key,
    remove_member,
    revoke_key,
    set_role,
)
from access_app.sign_in import check_password, count_address
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
        return _sign_in_form(request, target)
    name = request.POST.get("username", "")[:150]
    try:
        user = check_password(request, name, request.POST.get("password", ""))
    except AppError as exc:
        return _sign_in_form(request, target, exc, username=name)
    login(request, user)
    return HttpResponseRedirect(target)


@never_cache
@require_safe
def admin_sign_in(request: HttpRequest) -> HttpResponse:
    """Where the admin sends those it does not let in: to sign in, or no further."""
    if request.user.is_authenticated:
        # The sign-in page would send them back here, for ever.
        name = request.user.get_username()
        detail = f"{name} has no staff account. A superuser can make it one."
        return render(request, "refused.html", {"detail": detail}, status=403)
    query = request.META.get("QUERY_STRING", "")
    return redirect(f"{reverse('sign-in')}?{query}" if query else reverse("sign-in"))


def _sign_in_form(
    request: HttpRequest, target: str, refusal: AppError | None = None, **shown: str
) -> HttpResponse:
    offered = settings.OIDC_NAME if single_sign_on.is_offered() else ""
    return render(
        request,
        "access_app/sign_in.html",
        {"next": target, "single_sign_on": offered, "refusal": refusal, **shown},
        status=refusal.status if refusal else 200,
    )


@never_cache
@require_safe
def single_sign_on_begin(request: HttpRequest) -> HttpResponse:
    """Off to the provider. Counted, since each try makes a row in our sessions."""
    if not single_sign_on.is_offered():
        raise Http404
    target = _safe_next(request)
    if request.user.is_authenticated:
        return HttpResponseRedirect(target)
    try:
        count_address(request)
        return single_sign_on.begin(request, target)
    except AppError as exc:
        return _sign_in_form(request, target, exc)


@never_cache
@require_safe
def single_sign_on_return(request: HttpRequest) -> HttpResponse:
    """Back from the provider, with a code that proves who came."""
    if not single_sign_on.is_offered():
        raise Http404
    try:
        return HttpResponseRedirect(single_sign_on.finish(request))
    except AppError as exc:
        return _sign_in_form(request, reverse("home"), exc)


def _safe_next(request: HttpRequest) -> str:
    url = request.POST.get("next") or request.GET.get("next", "")
    if url_has_allowed_host_and_scheme(url, {request.get_host()}, request.is_secure()):
        return url
    return reverse("home")


@never_cache
@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    there = single_sign_on.way_out(request)
    logout(request)
    if there is None:
        return redirect("sign-in")
    # A page that leads on: a form's answer may not redirect to another origin.
    shown = {"there": there, "single_sign_on": settings.OIDC_NAME}
    return render(request, "access_app/signed_out.html", shown)


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
    if not name:
        raise FieldError("", "required", "Name the account.")
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


@project_action(Right.SEE_SESSIONS)
def keep_view(request: PageRequest) -> HttpResponse:
    """Keep the filters of a list under a name."""
    page = request.POST.get("page", "")
    kept = save_view(
        request.visit,
        page,
        request.POST.get("name", ""),
        request.POST.get("query", ""),
        shared=request.POST.get("shared") == "on",
    )
    messages.success(request, "The view is kept.")
    listed = reverse(f"{page}:list", args=[request.visit.project.slug])
    return redirect(f"{listed}?{kept}")


@project_action(Right.SEE_SESSIONS)
def drop_view(request: PageRequest, view_id: UUID) -> HttpResponse:
    page = delete_view(request.visit, view_id)
    messages.success(request, "The view is deleted.")
    return redirect(f"{page}:list", request.visit.project.slug)


@project_page(Right.SEE_AUDIT)
def audit(request: PageRequest) -> HttpResponse:
    wanted = {n: request.GET[n] for n in AUDIT_FILTERS if request.GET.get(n)}
    entries = AuditEntry.objects.in_project(request.visit.project.id).filter(**wanted)
    params = {"cursor": request.GET.get("cursor"), "limit": AUDIT_PAGE}
    page = paginate(entries, params, ("-created_at", "-id"))
    return render(request, "access_app/audit.html", {"page": page, "wanted": wanted})
