"""What surrounds every request: its id, its trace, and how long it took."""

import re
import time
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from django.contrib.auth.middleware import AuthenticationMiddleware
from django.contrib.messages.middleware import MessageMiddleware
from django.contrib.sessions.middleware import SessionMiddleware
from django.db import DataError
from django.http import HttpRequest, HttpResponse
from django.middleware.csp import ContentSecurityPolicyMiddleware
from django.middleware.csrf import CsrfViewMiddleware
from django.utils import timezone
from django.utils.csp import CSP
from django_htmx.middleware import HtmxMiddleware
from whitenoise.middleware import WhiteNoiseMiddleware

from agentstate import logs
from agentstate.api.errors import handler400
from agentstate.ids import new_id
from agentstate.metrics import record_request

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")


class RequestContextMiddleware:
    """Give the request an id, its own or the caller's, and count the answer."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        # request.headers would read every header to find two.
        request_id = request.META.get("HTTP_X_REQUEST_ID", "")
        if not REQUEST_ID.match(request_id):  # also keeps strange bytes out of logs
            request_id = str(new_id())
        context = logs.RequestContext.read(
            request_id, request.META.get("HTTP_TRACEPARENT", "")
        )
        token = logs.current.set(context)
        started = time.perf_counter()
        try:
            response = self.get_response(request)
        finally:
            logs.current.reset(token)
        record_request(request, response.status_code, time.perf_counter() - started)
        response["X-Request-ID"] = request_id
        return response


# Of the calls of the API; its documentation is a page like any other.
API, API_DOCS = "/api/", "/api/v1/docs"


class PagesOnly:
    """Mixed into what pages need and calls of the API do without.

    A call has no cookie, message or policy of a browser, and carries its own proof;
    asking for them would be a third of what a small call costs.
    """

    get_response: Any

    def __call__(self, request: HttpRequest) -> Any:
        if request.path.startswith(API) and not request.path.startswith(API_DOCS):
            return self.get_response(request)
        return super().__call__(request)  # type: ignore[misc]


class StaticFiles(PagesOnly, WhiteNoiseMiddleware): ...  # type: ignore[misc]


class Sessions(PagesOnly, SessionMiddleware): ...


class Csrf(PagesOnly, CsrfViewMiddleware): ...


class Authentication(PagesOnly, AuthenticationMiddleware): ...


class Messages(PagesOnly, MessageMiddleware): ...


class Htmx(PagesOnly, HtmxMiddleware): ...


class ContentSecurityPolicy(PagesOnly, ContentSecurityPolicyMiddleware): ...


ZONE_COOKIE = "zone"
# The admin's theme needs inline scripts and evaluates expressions; what agents wrote is
# escaped there all the same. The API's documentation starts by an inline script.
ADMIN_CSP: dict[str, Any] = {
    "default-src": [CSP.SELF],
    "script-src": [CSP.SELF, CSP.UNSAFE_INLINE, CSP.UNSAFE_EVAL],
    "style-src": [CSP.SELF, CSP.UNSAFE_INLINE],
    "img-src": [CSP.SELF, "data:"],
    "object-src": [CSP.NONE],
    "base-uri": [CSP.SELF],
    "form-action": [CSP.SELF],
    "frame-ancestors": [CSP.NONE],
}


class PagePolicyMiddleware:
    """The strict policy of settings for every page; a wider one where it must be."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if request.path.startswith(("/admin/", API_DOCS)):
            response._csp_config = ADMIN_CSP  # type: ignore[attr-defined]
        return response


class UnusableValueMiddleware:
    """400 for a value that Postgres cannot take, such as U+0000 in a form's text.

    The API's views say so themselves, with a path.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_exception(
        self, request: HttpRequest, exception: Exception
    ) -> HttpResponse | None:
        if isinstance(exception, DataError):
            return handler400(request, exception)
        return None


class ReaderZoneMiddleware:
    """Read and show times in the zone that the reader's browser named in a cookie."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        name = request.COOKIES.get(ZONE_COOKIE, "")
        if name not in ZONES:
            return self.get_response(request)
        with timezone.override(ZoneInfo(name)):
            return self.get_response(request)


ZONES = frozenset(available_timezones())
