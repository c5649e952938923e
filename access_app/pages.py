"""What every page of a project is: a signed-in member with a right, or 404 or 403."""

from collections.abc import Callable
from functools import wraps
from http import HTTPStatus
from typing import Any, Concatenate

from django.contrib import messages
from django.contrib.auth.models import User
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import ObjectDoesNotExist
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from access_app.roles import Right, Visit, find_visit
from agentstate.errors import AppError, FieldError

REASON_MAX = 1000
TYPED = "typed"  # in the session, between a refused form and the page that shows it
TYPED_MAX = 100_000  # characters; more is not kept


class PageRequest(HttpRequest):
    """A request of a signed-in person inside a project."""

    user: User
    visit: Visit
    htmx: Any


type Page[**P] = Callable[Concatenate[PageRequest, P], HttpResponseBase]
type PlainView = Callable[..., HttpResponseBase]


def project_page[**P](right: Right | None) -> Callable[[Page[P]], PlainView]:
    """A page to look at, under /p/<slug>/. `request.visit` says who looks.

    Without a right it is for every member.
    """

    def decorate(view: Page[P]) -> PlainView:
        return never_cache(require_safe(_inside_project(view, right)))

    return decorate


def project_action[**P](right: Right) -> Callable[[Page[P]], PlainView]:
    """A change: POST only. What a service refuses comes back as a message, beside the
    form as it was filled in."""

    def decorate(view: Page[P]) -> PlainView:
        @wraps(view)
        def act(request: PageRequest, *args: P.args, **kwargs: P.kwargs) -> Any:
            try:
                return view(request, *args, **kwargs)
            except AppError as exc:
                messages.error(request, exc.detail)
                keep_typed(request)
                return back(request)

        return require_POST(_inside_project(act, right))

    return decorate


def _inside_project(view: Page[Any], right: Right | None) -> PlainView:
    @wraps(view)
    def enter(request: PageRequest, slug: str, **kwargs: Any) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return to_sign_in(request)
        request.visit = find_visit(request.user, slug)
        if right is not None:
            request.visit.require(right)
        try:
            return view(request, **kwargs)
        except AppError as exc:
            return refused(request, exc)
        except ObjectDoesNotExist as exc:
            raise Http404("There is nothing here.") from exc

    return enter


def refused(request: HttpRequest, exc: AppError) -> HttpResponse:
    """What a person sees when a page cannot show what was asked for."""
    if exc.status == HTTPStatus.NOT_FOUND:
        raise Http404(exc.detail) from exc
    return render(request, "refused.html", {"detail": exc.detail}, status=exc.status)


def to_sign_in(request: HttpRequest) -> HttpResponse:
    if request.headers.get("HX-Request"):
        # A fragment cannot show a sign-in page: the whole window goes there.
        return HttpResponse(status=204, headers={"HX-Redirect": reverse("sign-in")})
    return redirect_to_login(request.get_full_path(), reverse("sign-in"))


def keep_typed(request: HttpRequest) -> None:
    """Keep what was typed for the next page, which has the form again.

    Its script fills it in (frame.js); nothing is kept longer than to that page.
    """
    values = {name: request.POST.getlist(name) for name in request.POST}
    values.pop("csrfmiddlewaretoken", None)
    if sum(len(text) for texts in values.values() for text in texts) <= TYPED_MAX:
        request.session[TYPED] = {"action": request.path, "values": values}


def take_typed(request: HttpRequest) -> dict[str, Any] | None:
    """What `keep_typed` has kept, once."""
    if getattr(request, "htmx", False) or TYPED not in request.session:
        return None
    typed: dict[str, Any] = request.session.pop(TYPED)
    return typed


def back(request: HttpRequest, otherwise: str = "/") -> HttpResponse:
    """Back to the page whose form was sent: named in it, or the one before."""
    for url in (request.POST.get("back", ""), request.headers.get("Referer", "")):
        if url_has_allowed_host_and_scheme(url, {request.get_host()}):
            return redirect(url)
    return redirect(otherwise)


def read_reason(request: HttpRequest) -> str:
    """The reason given with an action; every action asks for one."""
    reason = request.POST.get("reason", "").strip()
    if not reason:
        raise FieldError("", "required", "Say why: the audit log keeps the reason.")
    if len(reason) > REASON_MAX:
        detail = f"A reason has at most {REASON_MAX} characters."
        raise FieldError("", "too_long", detail)
    return reason
