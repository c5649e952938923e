"""Sessions: create, find, change, close, erase, fork, lock, and look back."""

from typing import Any
from uuid import UUID

from rest_framework.response import Response

from access_app.api.docs import documented, page
from access_app.api.views import ApiRequest
from access_app.errors import MissingScope
from access_app.scopes import SESSIONS_WRITE
from agentstate.api.etags import etag
from agentstate.api.pagination import page_response, paginate
from agentstate.api.params import read_params
from agentstate.api.serializers import read_as
from sessions_app import services
from sessions_app.api.base import LOCK_TOKEN, SESSION_EXAMPLE, SessionCallView
from sessions_app.api.serializers import (
    CreateSessionIn,
    ForkIn,
    LockIn,
    LockOut,
    ReasonIn,
    ReplayOut,
    ReplayParams,
    SessionListParams,
    SessionOut,
    UpdateSessionIn,
    session_json,
)
from sessions_app.errors import PreconditionRequired
from sessions_app.forking import fork_session
from sessions_app.log import event_json, iso
from sessions_app.models import Session
from sessions_app.querysets import SessionQuerySet
from sessions_app.replay import Replay, replay_at
from sessions_app.services import SessionFields

FIELDS = ("key", "agent", "subject", "title", "labels", "metadata", "expires_at")


LOCK_DEFAULTS: dict[str, Any] = {"holder": "", "ttl_s": 30}


class NewSessionView(SessionCallView):
    """A call whose answer is a session that it made."""

    def answer_session_id(self, response: Response) -> UUID | None:
        assert response.data is not None
        return UUID(response.data["id"])

    def check_may_create(self) -> None:
        """Raise MissingScope for a key that could not even see what it made."""
        if self.caller.session_id is not None:
            raise MissingScope(
                SESSIONS_WRITE, "This key is bound to one session and makes no other."
            )


class SessionListView(NewSessionView):
    @documented(
        "list_sessions",
        "List sessions, newest first",
        params=SessionListParams,
        responses={200: page(SessionOut)},
        response_example={"items": [SESSION_EXAMPLE], "next": None},
        tags=["sessions"],
    )
    def get(self, request: ApiRequest) -> Response:
        params = read_params(request, SessionListParams)
        found = filtered(
            Session.objects.filter(**self.caller.session_filter()).defer("state"),
            params,
        )
        listed = paginate(found, params, ["-id"])
        return page_response(listed, lambda s: session_json(s, with_state=False))

    @documented(
        "create_session",
        "Create a session",
        request=CreateSessionIn,
        responses={201: SessionOut, 200: SessionOut},
        request_example={
            "key": "order-1042",
            "agent": "support",
            "subject": "u-100",
            "state": {"step": "identify"},
        },
        response_example=SESSION_EXAMPLE,
        description="The same key again returns the same session with 200.",
        tags=["sessions"],
    )
    def post(self, request: ApiRequest) -> Response:
        body = read_as(CreateSessionIn, request)
        self.check_may_create()
        if self.caller.subject is not None:
            body.setdefault("subject", self.caller.subject)
            if body["subject"] != self.caller.subject:
                raise MissingScope(
                    SESSIONS_WRITE, "This key is bound to another subject."
                )
        session, is_new = services.create_session(
            self.caller.project_id,
            SessionFields(**{name: body[name] for name in FIELDS if name in body}),
            state=body.get("state"),
            actor=self.caller.actor,
            named=body,
        )
        return Response(
            session_json(session),
            status=201 if is_new else 200,
            headers={"ETag": etag(session.version)},
        )


def filtered(found: SessionQuerySet, params: dict[str, Any]) -> SessionQuerySet:
    """Narrow a list of sessions to what its query asks for."""
    exact = {
        name: params[name]
        for name in ("key", "agent", "subject", "status")
        if name in params
    }
    found = found.filter(**exact)
    if "parent" in params:
        found = found.filter(parent_id=params["parent"])
    if "label" in params:
        found = found.with_labels(params["label"])
    if "q" in params:
        found = found.matching(params["q"])
    if "updated_since" in params:
        found = found.updated_since(params["updated_since"])
    return found


class SessionView(SessionCallView):
    @documented(
        "get_session",
        "Read a session and its state",
        responses={200: SessionOut},
        response_example=SESSION_EXAMPLE,
        errors=[404],
        tags=["sessions"],
    )
    def get(self, request: ApiRequest, session_id: UUID) -> Response:
        read_params(request)
        return session_response(self.load(session_id))

    @documented(
        "update_session",
        "Change a session's title, agent, labels, metadata or expiry",
        request=UpdateSessionIn,
        responses={200: SessionOut},
        request_example={"title": "Where is my order?", "labels": {"channel": "chat"}},
        response_example=SESSION_EXAMPLE,
        headers=[LOCK_TOKEN],
        errors=[404, 423],
        tags=["sessions"],
    )
    def patch(self, request: ApiRequest, session_id: UUID) -> Response:
        changes = read_as(UpdateSessionIn, request)
        session = services.update_session(
            self.caller.project_id, session_id, changes, **self.writer
        )
        return session_response(session)

    @documented(
        "erase_session",
        "Erase a session with its log and state",
        responses={204: None},
        headers=[LOCK_TOKEN],
        errors=[404, 423],
        description="Forks keep the events that they began with.",
        tags=["sessions"],
    )
    def delete(self, request: ApiRequest, session_id: UUID) -> Response:
        services.erase_session(self.caller.project_id, session_id, **self.writer)
        return Response(status=204)


class CloseView(SessionCallView):
    @documented(
        "close_session",
        "Close a session: it takes no more events",
        request=ReasonIn,
        responses={200: SessionOut},
        request_example={"reason": "solved"},
        response_example=SESSION_EXAMPLE | {"status": "closed"},
        headers=[LOCK_TOKEN],
        errors=[404, 423],
        tags=["sessions"],
    )
    def post(self, request: ApiRequest, session_id: UUID) -> Response:
        session = services.close_session(
            self.caller.project_id,
            session_id,
            reason=read_reason(request),
            **self.writer,
        )
        return session_response(session)


class ReopenView(SessionCallView):
    @documented(
        "reopen_session",
        "Open a closed session again",
        request=ReasonIn,
        responses={200: SessionOut},
        request_example={"reason": "the customer wrote again"},
        response_example=SESSION_EXAMPLE,
        headers=[LOCK_TOKEN],
        errors=[404, 423],
        tags=["sessions"],
    )
    def post(self, request: ApiRequest, session_id: UUID) -> Response:
        session = services.reopen_session(
            self.caller.project_id,
            session_id,
            reason=read_reason(request),
            **self.writer,
        )
        return session_response(session)


class ForkView(NewSessionView):
    @documented(
        "fork_session",
        "Begin a new session with the same log, up to some seq",
        request=ForkIn,
        responses={201: SessionOut},
        request_example={"at_seq": 12, "title": "What if we had asked first?"},
        response_example=SESSION_EXAMPLE,
        errors=[404],
        description="The parent is untouched and nothing is copied: a fork of a long "
        "session costs the same as one of a short.",
        tags=["sessions"],
    )
    def post(self, request: ApiRequest, session_id: UUID) -> Response:
        body = read_as(ForkIn, request)
        self.check_may_create()
        fork = fork_session(
            self.caller.project_id,
            session_id,
            body["at_seq"],
            SessionFields(**{name: body[name] for name in FIELDS if name in body}),
            actor=self.caller.actor,
            subject=self.caller.subject,
        )
        return session_response(fork, status=201)


class LockView(SessionCallView):
    @documented(
        "lock_session",
        "Take the session's lock, or extend it",
        request=LockIn,
        responses={200: LockOut},
        request_example={"holder": "worker-7", "ttl_s": 30},
        response_example={
            "token": "0199b2a0-9f00-7b1c-a0c4-1f5e3d2c7b90",
            "fence": 3,
            "holder": "worker-7",
            "until": "2026-01-15T09:30:30.000000Z",
        },
        headers=[LOCK_TOKEN],
        errors=[404, 423],
        description="While it is held, writes without its token get 423. With the "
        "token in X-Lock-Token the lease is extended; its fence stays.",
        tags=["sessions"],
    )
    def post(self, request: ApiRequest, session_id: UUID) -> Response:
        body = read_as(LockIn, request) if has_body(request) else LOCK_DEFAULTS
        writer = self.writer
        lock = services.lock_session(
            self.caller.project_id,
            session_id,
            holder=body["holder"] or writer["actor"],
            seconds=body["ttl_s"],
            lock_token=writer["lock_token"],
            subject=writer["subject"],
        )
        return Response(
            {
                "token": str(lock.token),
                "fence": lock.fence,
                "holder": lock.holder,
                "until": iso(lock.until),
            }
        )

    @documented(
        "unlock_session",
        "Give the session's lock back",
        responses={204: None},
        headers=[LOCK_TOKEN],
        errors=[404, 423, 428],
        tags=["sessions"],
    )
    def delete(self, request: ApiRequest, session_id: UUID) -> Response:
        writer = self.writer
        if writer["lock_token"] is None:
            raise PreconditionRequired("Send the lock's token in X-Lock-Token.")
        services.release_lock(
            self.caller.project_id,
            session_id,
            writer["lock_token"],
            subject=writer["subject"],
        )
        return Response(status=204)


class ReplayView(SessionCallView):
    @documented(
        "replay_session",
        "Read a session as it was after some event",
        params=ReplayParams,
        responses={200: ReplayOut},
        response_example={
            "at_seq": 2,
            "state": {"step": "identify"},
            "version": 1,
            "conversation": [],
            "conversation_before_seq": None,
            "open_tool_calls": [],
            "plan": {
                "run": "0199b2a0-4c11-7d05-9f00-aa5b1c2d3e4f",
                "key": "refund-1042",
                "agent": "support",
                "state": "running",
                "reason": "",
                "error": None,
                "plan_version": 1,
                "steps": [
                    {
                        "id": "0199b2a0-4c12-7a5e-8a00-bb5b1c2d3e4f",
                        "index": 0,
                        "name": "",
                        "kind": "tool",
                        "tool": "refund",
                        "args": {"order": 1042},
                        "depends_on": [],
                        "effect": "once",
                        "state": "in_progress",
                        "wait": None,
                        "attempt": 1,
                        "failures": 0,
                        "lost": 0,
                        "previous": None,
                        "worker": "w-1",
                        "result_seq": None,
                        "error": None,
                        "started_at": "2026-01-15T09:30:00.000000Z",
                        "ended_at": None,
                    }
                ],
            },
        },
        errors=[404],
        tags=["sessions"],
    )
    def get(self, request: ApiRequest, session_id: UUID) -> Response:
        params = read_params(request, ReplayParams)
        session = self.load(session_id)
        return Response(replay_json(replay_at(session, **params)))


def replay_json(replay: Replay) -> dict[str, Any]:
    events, has_more = replay.conversation
    return {
        "at_seq": replay.at_seq,
        "state": replay.state.state,
        "version": replay.state.version,
        "conversation": [event_json(event) for event in events],
        "conversation_before_seq": events[0].seq if has_more and events else None,
        "open_tool_calls": [
            {
                "seq": call.call_seq,
                "tool_call_id": call.tool_call_id,
                "name": call.name,
                "awaiting": call.awaiting or None,
            }
            for call in replay.open_tool_calls
        ],
        "plan": replay.plan,
    }


def session_response(session: Session, status: int = 200) -> Response:
    return Response(
        session_json(session),
        status=status,
        headers={"ETag": etag(session.version)},
    )


def has_body(request: ApiRequest) -> bool:
    return bool(request._request.body.strip())


def read_reason(request: ApiRequest) -> str:
    """The reason given with a move; the body may be left out."""
    if not has_body(request):
        return ""
    reason: str = read_as(ReasonIn, request)["reason"]
    return reason
