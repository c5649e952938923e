"""What surrounds every request: its id, its trace, and how long it took."""

import re
import time
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from agentstate import logs
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
