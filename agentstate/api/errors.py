"""One place that turns what went wrong into application/problem+json.

Used by DRF's views (`problem_response`) and, for what programs call, by Django itself
(`handler400` … `handler500`, `csrf_failure`). A client reads `code`, which is the
contract, and `errors`, a list of `{path, code, detail}` whose paths are JSON paths into
the request.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from django.core.exceptions import (
    BadRequest,
    ObjectDoesNotExist,
    PermissionDenied,
    RequestDataTooBig,
    SuspiciousOperation,
)
from django.db import DataError, InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse
from django.http.multipartparser import MultiPartParserError
from django.views import csrf, defaults
from rest_framework import exceptions as drf
from rest_framework.response import Response

from agentstate import codec
from agentstate.errors import AppError, NotFound, ServiceUnavailable
from agentstate.metrics import CONFLICTS

logger = logging.getLogger(__name__)

CONTENT_TYPE = "application/problem+json"
INVALID = "The request holds values that are not allowed."
RETRY_SECONDS = "1"

type Path = tuple[str | int, ...]


class DatabaseUnavailable(ServiceUnavailable):
    """The database did not answer in time. Nothing was changed; try again."""

    code = "database_unavailable"


class UnusableValue(AppError):
    """The database cannot keep one of these values."""

    code, status = "invalid", 422


def problem_response(exc: Exception, context: Mapping[str, Any]) -> Response:
    """DRF's exception handler. Answers every exception, the unforeseen with a 500."""
    status, body, headers = describe(exc)
    if status >= 500:
        _log(exc, context.get("request"), status)
    elif status in (409, 412):
        CONFLICTS.labels(body["code"]).inc()
    return Response(body, status=status, headers=headers, content_type=CONTENT_TYPE)


def describe(exc: Exception) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Return the status, the problem body and the headers that answer `exc`."""
    if isinstance(exc, AppError):
        body = problem(exc.status, exc.code, exc.detail, **exc.extra)
        return exc.status, body, exc.headers
    if isinstance(exc, drf.ValidationError):
        errors = list(flat_errors(exc.get_full_details()))
        return 422, problem(422, "invalid", _summary(errors), errors=errors), {}
    if isinstance(exc, drf.APIException):
        return _describe_drf(exc)
    if isinstance(exc, Http404 | ObjectDoesNotExist):
        return describe(NotFound())
    if isinstance(exc, PermissionDenied):
        return 403, problem(403, "forbidden", "This is not allowed."), {}
    if isinstance(exc, RequestDataTooBig):
        return 413, problem(413, "body_too_large", "The body is too large."), {}
    if isinstance(exc, SuspiciousOperation | BadRequest | MultiPartParserError):
        return 400, problem(400, "bad_request", "The request cannot be read."), {}
    if isinstance(exc, OperationalError | InterfaceError):
        return describe(DatabaseUnavailable(headers={"Retry-After": RETRY_SECONDS}))
    if isinstance(exc, DataError):
        return describe(UnusableValue())
    detail = "Something went wrong in the server. It has been logged."
    return 500, problem(500, "internal_error", detail), {}


def problem(status: int, code: str, detail: str, **extra: Any) -> dict[str, Any]:
    """Return a problem body: RFC 9457's members, `code`, then what belongs to it."""
    return {
        "type": f"urn:agentstate:problem:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
        **extra,
    }


def flat_errors(details: Any, path: Path = ()) -> Iterator[dict[str, str]]:
    """Flatten DRF's nested details into `{path, code, detail}` items."""
    if isinstance(details, Mapping) and set(details) == {"message", "code"}:
        yield {
            "path": codec.json_path(path),
            "code": str(details["code"]),
            "detail": str(details["message"]),
        }
    elif isinstance(details, Mapping):
        for key, value in details.items():
            own = key == "non_field_errors"
            yield from flat_errors(value, path if own else (*path, key))
    elif isinstance(details, Sequence):
        yield from _flat_list(details, path)


def _flat_list(details: Sequence[Any], path: Path) -> Iterator[dict[str, str]]:
    """A list is either one value's errors, or one mapping for each item of a list."""
    for index, item in enumerate(details):
        if isinstance(item, Mapping) and set(item) == {"message", "code"}:
            yield from flat_errors(item, path)
        else:
            yield from flat_errors(item, (*path, index))


def _summary(errors: list[dict[str, str]]) -> str:
    if len(errors) != 1:
        return INVALID
    [error] = errors
    return f"{error['path']}: {error['detail']}"


DRF_CODES = {
    "parse_error": "malformed_json",
    "not_authenticated": "unauthenticated",
    "authentication_failed": "unauthenticated",
    "permission_denied": "forbidden",
}


def _describe_drf(
    exc: drf.APIException,
) -> tuple[int, dict[str, Any], dict[str, str]]:
    code = DRF_CODES.get(exc.default_code, exc.default_code)
    headers = {}
    if auth_header := getattr(exc, "auth_header", None):
        headers["WWW-Authenticate"] = auth_header
    if wait := getattr(exc, "wait", None):
        headers["Retry-After"] = str(int(wait))
    status = exc.status_code
    return status, problem(status, code, str(exc.detail)), headers


def _log(exc: Exception, request: Any, status: int) -> None:
    # Never the body, the query or the headers: they may hold keys and personal text.
    where = {
        "method": getattr(request, "method", None),
        "path": getattr(request, "path", None),
        "status": status,
    }
    if isinstance(exc, AppError) or status == 503:
        logger.warning("request refused: %s", type(exc).__name__, extra=where)
    else:
        logger.error("request failed", exc_info=exc, extra=where)


# What programs call: whatever goes wrong there is told as problem+json.
MACHINE_PATH = re.compile(r"/(api|artifacts|healthz|readyz|metrics|ws)(/|\Z)")


def is_for_machines(request: HttpRequest) -> bool:
    return MACHINE_PATH.match(request.path) is not None


def problem_http(exc: Exception) -> HttpResponse:
    """Answer `exc` from outside any DRF view."""
    status, body, headers = describe(exc)
    return HttpResponse(
        codec.dumps(body), status=status, content_type=CONTENT_TYPE, headers=headers
    )


def handler400(request: HttpRequest, exception: Exception) -> HttpResponse:
    if is_for_machines(request):
        return problem_http(BadRequest())
    return defaults.bad_request(request, exception)


def handler403(request: HttpRequest, exception: Exception) -> HttpResponse:
    if is_for_machines(request):
        return problem_http(PermissionDenied())
    return defaults.permission_denied(request, exception)


def handler404(request: HttpRequest, exception: Exception) -> HttpResponse:
    if is_for_machines(request):
        return problem_http(NotFound("There is nothing at this address."))
    return defaults.page_not_found(request, exception)


def handler500(request: HttpRequest) -> HttpResponse:
    if is_for_machines(request):
        return problem_http(Exception())
    return defaults.server_error(request)


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """What settings.CSRF_FAILURE_VIEW names: a form whose token is missing or old."""
    if is_for_machines(request):
        return problem_http(PermissionDenied())
    return csrf.csrf_failure(request, reason)
