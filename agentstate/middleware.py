"""What surrounds every request: its id, its trace, and how long it took."""

import re
import time
from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from django.db import DataError
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.csp import CSP

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
        request_id = request.headers.get("X-Request-ID", "")
        if not REQUEST_ID.match(request_id):  # also keeps strange bytes out of logs
            request_id = str(new_id())
        context = logs.RequestContext.read(
            request_id, request.headers.get("traceparent", "")
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
    """The strict policy of settings for every page; a wider one where it must be.

    Answers of the API carry none: no browser shows them.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        if request.path.startswith(("/admin/", "/api/v1/docs")):
            response._csp_config = ADMIN_CSP  # type: ignore[attr-defined]
        elif request.path.startswith("/api/"):
            response._csp_config = {}  # type: ignore[attr-defined]
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
