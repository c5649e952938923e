"""A session's state: read it at any seq, replace it by compare-and-set."""

from contextlib import suppress
from typing import Any
from uuid import UUID

from rest_framework.response import Response

from access_app.api.docs import documented
from access_app.api.views import ApiRequest
from agentstate.api.etags import etag, read_if_match
from agentstate.api.params import read_params
from agentstate.api.parsers import JSONParser
from agentstate.api.serializers import read_as
from agentstate.errors import FieldError
from agentstate.json_patch import apply_patch, merge_patch
from sessions_app.api.base import IF_MATCH, LOCK_TOKEN, SessionCallView
from sessions_app.api.serializers import (
    PatchStateIn,
    PutStateIn,
    StateOut,
    StateParams,
)
from sessions_app.errors import PreconditionRequired, VersionConflict
from sessions_app.replay import StateAt, check_seq, state_at
from sessions_app.services import write_state

OPERATIONS_MAX = 10_000  # of one JSON patch
OVERTAKEN_MAX = 50  # times, by others, of a write that takes any version
STATE_EXAMPLE = {"state": {"step": "pay", "cart": ["pear"]}, "version": 4}


class MergePatchParser(JSONParser):
    media_type = "application/merge-patch+json"


class JSONPatchParser(JSONParser):
    media_type = "application/json-patch+json"


class StateView(SessionCallView):
    parser_classes = [JSONParser, MergePatchParser, JSONPatchParser]

    @documented(
        "get_state",
        "Read a session's state",
        params=StateParams,
        responses={200: StateOut},
        response_example=STATE_EXAMPLE,
        errors=[404],
        tags=["state"],
    )
    def get(self, request: ApiRequest, session_id: UUID) -> Response:
        params = read_params(request, StateParams)
        session = self.load(session_id)
        if "at_seq" in params:
            check_seq(session, params["at_seq"])
            return state_response(state_at(session, params["at_seq"]))
        return state_response(StateAt(session.state, session.version))

    @documented(
        "put_state",
        "Replace a session's state",
        request=PutStateIn,
        responses={200: StateOut},
        request_example={"state": {"step": "pay"}, "expected_version": 3},
        response_example=STATE_EXAMPLE,
        headers=[IF_MATCH, LOCK_TOKEN],
        errors=[404, 412, 423, 428],
        tags=["state"],
    )
    def put(self, request: ApiRequest, session_id: UUID) -> Response:
        body = read_as(PutStateIn, request)
        return self.write(session_id, body["state"], body.get("expected_version"))

    @documented(
        "patch_state",
        "Change a session's state by a merge patch or a JSON patch",
        request={
            JSONParser.media_type: PatchStateIn,
            MergePatchParser.media_type: {"type": "object"},
            JSONPatchParser.media_type: {"type": "array", "items": {"type": "object"}},
        },
        responses={200: StateOut},
        request_example={
            JSONParser.media_type: {"merge": {"step": "pay"}, "expected_version": 3},
            MergePatchParser.media_type: {"step": "pay"},
            JSONPatchParser.media_type: [
                {"op": "replace", "path": "/step", "value": "pay"}
            ],
        },
        response_example=STATE_EXAMPLE,
        headers=[IF_MATCH, LOCK_TOKEN],
        errors=[404, 412, 423, 428],
        description="As application/merge-patch+json or application/json-patch+json "
        "the body is the patch itself, and If-Match says the version.",
        tags=["state"],
    )
    def patch(self, request: ApiRequest, session_id: UUID) -> Response:
        patch, is_merge, expected = read_patch(request)
        change = merge_patch if is_merge else apply_patch
        return self.write(session_id, lambda old: change(old, patch), expected)

    def write(self, session_id: UUID, new_state: Any, expected: int | None) -> Response:
        if_match = read_if_match(self.request)
        if isinstance(if_match, str):  # "*": whatever is there
            if expected is None:
                return self.write_over(session_id, new_state)
            if_match = None
        if if_match is not None and expected not in (None, if_match):
            raise FieldError(
                "expected_version", "conflict", "differs from what If-Match says"
            )
        if expected is None:
            expected = if_match
        if expected is None:
            self.load(session_id)  # an unknown session is 404, not 428
            raise PreconditionRequired
        try:
            return self.write_once(session_id, new_state, expected)
        except VersionConflict as conflict:
            if if_match is not None:
                conflict.status = 412
            raise

    def write_over(self, session_id: UUID, new_state: Any) -> Response:
        """Write whatever the version: a writer who was faster is read anew."""
        for _ in range(OVERTAKEN_MAX):
            with suppress(VersionConflict):
                return self.write_once(session_id, new_state, None)
        return self.write_once(session_id, new_state, None)

    def write_once(
        self, session_id: UUID, new_state: Any, expected: int | None
    ) -> Response:
        return state_response(
            write_state(
                self.caller.project_id,
                session_id,
                new_state,
                expected_version=expected,
                **self.writer,
            )
        )


def read_patch(request: ApiRequest) -> tuple[Any, bool, int | None]:
    """Return the patch, whether it is a merge patch, and expected_version."""
    media_type = (request.content_type or "").partition(";")[0].strip().lower()
    if media_type == MergePatchParser.media_type:
        return request.data, True, None
    if media_type == JSONPatchParser.media_type:
        if not isinstance(request.data, list):
            raise FieldError("$", "not_a_list", "a JSON patch is a list of operations")
        return _few(request.data), False, None
    body = read_as(PatchStateIn, request)
    if "merge" in body:
        return body["merge"], True, body.get("expected_version")
    return _few(body["patch"]), False, body.get("expected_version")


def _few(patch: list[Any]) -> list[Any]:
    # Each may move the rest of a long array: their number bounds what a call can cost.
    if len(patch) > OPERATIONS_MAX:
        raise FieldError(
            "patch", "too_many", f"holds more than {OPERATIONS_MAX} operations"
        )
    return patch


def state_response(at: StateAt) -> Response:
    return Response(
        {"state": at.state, "version": at.version}, headers={"ETag": etag(at.version)}
    )
