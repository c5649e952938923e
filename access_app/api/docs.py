"""One decorator that writes a call into the OpenAPI document, refusals included."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Any

from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    OpenApiResponse,
    extend_schema,
)
from rest_framework import serializers

from access_app.idempotency import HEADER
from agentstate.api.errors import CONTENT_TYPE, problem
from agentstate.api.params import Params

JSON = "application/json"

# What any call may be answered, and what any call that writes may be answered besides.
ALWAYS = (401, 403, 422, 429, 503)
WRITING = (400, 409, 411, 413, 415)
PROBLEMS = {
    400: ("malformed_json", "The body is not JSON."),
    401: ("unauthenticated", "Send a valid API key."),
    403: ("missing_scope", "This key does not have the scope that the call needs."),
    404: ("not_found", "There is no such thing in this project."),
    409: ("idempotency_in_progress", "A call with this key is still running."),
    411: ("length_required", "Send a Content-Length."),
    412: ("version_conflict", "The value has changed since the version you named."),
    413: ("body_too_large", "The body is larger than this server takes."),
    415: ("unsupported_media_type", "Send application/json."),
    422: ("invalid", "name: this call has no such field"),
    423: ("locked", "Another holder has the lock."),
    428: ("precondition_required", "Send If-Match."),
    429: ("rate_limited", "This key has used up its calls for the minute."),
    503: ("unavailable", "A service that this call needs is not reachable."),
}

type Method = Callable[..., Any]
type Success = int | tuple[int, str]


class ProblemItem(serializers.Serializer[Any]):
    path = serializers.CharField(help_text="JSON path, such as `events[1].payload`.")
    code = serializers.CharField()
    detail = serializers.CharField()


class Problem(serializers.Serializer[Any]):
    """RFC 9457. `code` is the contract; what else there is depends on it."""

    type = serializers.CharField()
    title = serializers.CharField()
    status = serializers.IntegerField()
    code = serializers.CharField()
    detail = serializers.CharField()
    errors = ProblemItem(many=True, required=False)  # type: ignore[assignment]


def documented(
    operation: str,
    summary: str,
    *,
    responses: Mapping[Success, Any],
    request: Any = None,
    params: type[Params] | None = None,
    headers: Sequence[OpenApiParameter] = (),
    errors: Collection[int] = (),
    request_example: Any = None,
    response_example: Any = None,
    description: str | None = None,
    tags: Sequence[str] | None = None,
) -> Callable[[Method], Method]:
    """Document a view's method. `operation` is its id, `list_keys`.

    `responses` maps success statuses, or pairs of status and media type, to serializers
    (None: no body). The refusals that any call may meet are added, `errors` are those
    beyond them. `response_example` stands at every success status. `request` is the
    serializer of a JSON body, or maps media types to serializers or plain schemas;
    `request_example` then maps them to examples. Idempotency-Key is added where the
    method writes.
    """

    def decorate(method: Method) -> Method:
        writes = method.__name__ in {"post", "put", "patch", "delete"}
        statuses = {*ALWAYS, *errors, *(WRITING if writes else ())}
        parameters: list[Any] = [*headers, *([IDEMPOTENCY] if writes else [])]
        return extend_schema(
            operation_id=operation,
            summary=summary,
            description=description or "",
            parameters=[*parameters, *([params] if params else [])],
            request=_by_media_type(request),
            responses={**_successes(responses), **_problems(statuses)},
            examples=[
                *_request_examples(request, request_example),
                *_answer_examples(responses, response_example),
            ],
            tags=tags,
        )(method)

    return decorate


@cache
def page(item: type[serializers.Serializer[Any]]) -> type[serializers.Serializer[Any]]:
    """The envelope of a list: `{"items": [item…], "next": cursor or null}`."""
    fields = {
        "items": item(many=True),
        "next": serializers.CharField(
            allow_null=True, help_text="The cursor of the next page; null on the last."
        ),
    }
    return type(f"{item.__name__}Page", (serializers.Serializer,), fields)


IDEMPOTENCY = OpenApiParameter(
    HEADER,
    {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$"},
    OpenApiParameter.HEADER,
    description=(
        "1 to 255 printable characters. The same key with the same body is given the "
        "first answer again for 24 hours, marked `Idempotency-Replayed: true`; with "
        "another body it is refused (422). While the first call runs: 409."
    ),
)


def _successes(responses: Mapping[Success, Any]) -> dict[Any, Any]:
    return {
        status: OpenApiResponse(body, HTTPStatus(_number(status)).phrase)
        for status, body in responses.items()
    }


def _number(status: Success) -> int:
    return status[0] if isinstance(status, tuple) else status


def _by_media_type(value: Any) -> Any:
    if value is None or isinstance(value, Mapping):
        return value
    return {JSON: value}


def _problems(statuses: Collection[int]) -> dict[Any, Any]:
    return {
        (status, CONTENT_TYPE): _problem_response(status) for status in sorted(statuses)
    }


@cache
def _problem_response(status: int) -> OpenApiResponse:
    code, detail = PROBLEMS.get(status, ("error", HTTPStatus(status).phrase))
    example = OpenApiExample(
        code,
        problem(status, code, detail),
        media_type=CONTENT_TYPE,
        response_only=True,
        status_codes=[str(status)],
    )
    return OpenApiResponse(Problem, HTTPStatus(status).phrase, [example])


def _request_examples(request: Any, example: Any) -> Iterator[OpenApiExample]:
    if example is None:
        return
    examples = example if isinstance(request, Mapping) else {JSON: example}
    for media_type, value in examples.items():
        yield OpenApiExample(
            f"request {media_type}", value, media_type=media_type, request_only=True
        )


def _answer_examples(
    responses: Mapping[Success, Any], example: Any
) -> Iterator[OpenApiExample]:
    for success, body in responses.items():
        if example is None or body is None:
            continue
        media_type = success[1] if isinstance(success, tuple) else JSON
        yield OpenApiExample(
            f"answer {_number(success)}",
            example,
            media_type=media_type,
            response_only=True,
            status_codes=[str(_number(success))],
        )
