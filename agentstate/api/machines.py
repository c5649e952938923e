"""Addresses that programs call outside of DRF: health, metrics, links to artifacts."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from agentstate.api.errors import problem_http
from agentstate.errors import AppError

SAFE = ("GET", "HEAD")


class MethodNotAllowed(AppError):
    """This address does not take this method."""

    code, status = "method_not_allowed", 405


def read_by_machines[**P](
    view: Callable[P, HttpResponseBase],
) -> Callable[P, HttpResponseBase]:
    """Let `view` answer GET and HEAD, and what goes wrong be problem+json.

    It changes nothing, so there is nothing that a forged request could do: a wrong
    method is told so, and not asked for the token of a form.
    """

    @csrf_exempt
    @wraps(view)
    def answer(*args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        request: Any = args[0]
        assert isinstance(request, HttpRequest)
        try:
            if request.method not in SAFE:
                raise MethodNotAllowed(headers={"Allow": ", ".join(SAFE)})
            return view(*args, **kwargs)
        except AppError as exc:
            return problem_http(exc)

    return answer
