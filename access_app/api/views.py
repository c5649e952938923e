"""What every view of the API is: known caller, scope, rate limit, safe retries."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal
from uuid import UUID

from django.db import transaction
from django.http import HttpRequest, HttpResponseBase
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from access_app import idempotency
from access_app.callers import Caller
from access_app.errors import Unauthenticated
from access_app.idempotency import Answer, IdempotencyRequest
from access_app.rate_limits import Usage, count_call
from access_app.refusals import note_refusal
from agentstate.api.parsers import check_length
from agentstate.api.renderers import render_json
from agentstate.codec import RawJSON

SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
ANY_KEY = ""  # as a scope: whatever the key may do

type Handler = Callable[..., HttpResponseBase]


class ApiRequest(Request):
    """A request of the API: who calls, and with which Idempotency-Key."""

    auth: Caller
    idempotency: IdempotencyRequest | None = None


class FirstRenderer(BaseContentNegotiation):
    """Answer as the view does, whatever Accept says: there is one representation."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        media_type = (request.content_type or "").partition(";")[0].strip().lower()
        for parser in parsers:
            if media_type == parser.media_type:
                return parser
        return None

    def select_renderer(
        self,
        request: Request,
        renderers: Any,
        format_suffix: str | None = None,
    ) -> tuple[BaseRenderer, str]:
        return renderers[0], renderers[0].media_type


class ApiView(APIView):
    """A view under /api/v1/.

    `scopes` names the scope each method needs (ANY_KEY for none in particular). Unsafe
    methods honour Idempotency-Key: with "view", the handler runs in one transaction
    with the record of its answer; with "service", the handler reads
    `request.idempotency` and sees to it.
    """

    scopes: ClassVar[Mapping[str, str]] = {}
    idempotency: ClassVar[Literal["view", "service"]] = "view"

    http_method_names = ["get", "post", "put", "patch", "delete", "head"]
    content_negotiation_class = FirstRenderer
    usage: Usage | None = None
    caller: Caller

    @property
    def api_request(self) -> ApiRequest:
        assert isinstance(self.request, ApiRequest)
        return self.request

    def initialize_request(
        self, request: HttpRequest, *args: Any, **kwargs: Any
    ) -> ApiRequest:
        return ApiRequest(
            request,
            parsers=self.get_parsers(),
            authenticators=self.get_authenticators(),
            negotiator=self.get_content_negotiator(),
            parser_context=self.get_parser_context(request),
        )

    def perform_authentication(self, request: Request) -> None:
        """Identify the caller and count the call, refused calls included."""
        caller = request.auth
        if not isinstance(caller, Caller):
            raise Unauthenticated
        self.caller = caller
        self.usage = count_call(caller)
        if self.usage is not None:
            self.usage.check()

    def check_permissions(self, request: Request) -> None:
        if (request.method or "").lower() not in self.http_method_names or not hasattr(
            self, (request.method or "").lower()
        ):
            self.http_method_not_allowed(request)
        super().check_permissions(request)

    def dispatch(
        self, request: HttpRequest, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        """As APIView's, with the handler behind `call_once`."""
        self.args = args
        self.kwargs = kwargs
        api_request = self.initialize_request(request, *args, **kwargs)
        self.request = api_request
        self.headers = {}
        try:
            self.initial(api_request, *args, **kwargs)
            handler = getattr(self, (request.method or "").lower())
            response = self.call_once(handler, api_request)
        except Exception as exc:
            self.headers = self.default_response_headers  # the methods that there are
            response = self.handle_exception(exc)
            self.note_refused_change(response)
        return self.finalize_response(api_request, response, *args, **kwargs)

    def call_once(self, handler: Handler, request: ApiRequest) -> HttpResponseBase:
        """Run the handler; or, for a call already answered, give that answer."""
        if request.method not in SAFE_METHODS:
            request.idempotency = self.read_idempotency(request)
        if request.idempotency is None or self.idempotency == "service":
            return handler(request, *self.args, **self.kwargs)
        with transaction.atomic():
            answer = idempotency.begin(request.idempotency)
            if answer is not None:
                return replayed(answer, self.restored_body(answer.body))
            response = handler(request, *self.args, **self.kwargs)
            if not isinstance(response, Response) or response.status_code >= 300:
                transaction.set_rollback(True)
                return response
            self.keep_answer(request.idempotency, response)
            return response

    def note_refused_change(self, response: Response) -> None:
        """Audit a change that the key may not make, or of what it may not see."""
        request = self.api_request
        if request.method in SAFE_METHODS or response.status_code not in (403, 404):
            return
        caller = getattr(request, "_auth", None)
        if isinstance(caller, Caller) and isinstance(response.data, dict):
            code = str(response.data.get("code"))
            note_refusal(caller, self.object_named(), request.method or "", code)

    def object_named(self) -> str:
        """What the path names, as "kind:id": an id, since a name may be personal."""
        for name, value in reversed(self.kwargs.items()):
            if isinstance(value, UUID):
                return f"{name.removesuffix('_id')}:{value}"
        match = self.request.resolver_match
        return f"call:{match.view_name if match else ''}"

    def read_idempotency(self, request: ApiRequest) -> IdempotencyRequest | None:
        """Return the call's Idempotency-Key; refuse a body that is too large."""
        check_length(request._request)
        return idempotency.read_idempotency(request, self.caller)

    def keep_answer(self, call: IdempotencyRequest, response: Response) -> None:
        """Store the response, rendered here and not again when it is sent."""
        body = render_json(response.data)
        answer = Answer(
            response.status_code, kept_headers(response), self.stored_body(body)
        )
        idempotency.store_answer(call, answer, self.answer_session_id(response))
        response.data = RawJSON(body) if body else None

    def answer_session_id(self, response: Response) -> UUID | None:
        """The session whose content an answer may repeat: the one in the path."""
        session_id = self.kwargs.get("session_id")
        return session_id if isinstance(session_id, UUID) else None

    def stored_body(self, body: str) -> str:
        """What of `body` may lie in the database; `restored_body` undoes it."""
        return body

    def restored_body(self, body: str) -> str:
        return body

    def finalize_response[R: HttpResponseBase](
        self, request: Request, response: R, *args: Any, **kwargs: Any
    ) -> R:
        super().finalize_response(request, response, *args, **kwargs)  # type: ignore[arg-type]
        if self.usage is not None:
            for name, value in self.usage.headers.items():
                response[name] = value
        response.setdefault("Cache-Control", "no-store")
        return response


def replayed(answer: Answer, body: str | None = None) -> Response:
    """Return the response that `answer` was, marked as given before."""
    body = answer.body if body is None else body
    return Response(
        RawJSON(body) if body else None,
        status=answer.status,
        headers=answer.headers | {idempotency.REPLAYED: "true"},
    )


def kept_headers(response: Response) -> dict[str, str]:
    """The headers the handler set. The content type is the renderer's to say."""
    return {k: v for k, v in response.items() if k.lower() != "content-type"}
