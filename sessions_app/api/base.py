"""What the calls on one session share."""

from typing import Any, ClassVar
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter

from access_app.api.views import ApiRequest, ApiView
from access_app.scopes import SESSIONS_READ, SESSIONS_WRITE
from agentstate.errors import FieldError
from sessions_app.errors import SessionNotFound
from sessions_app.models import Session
from sessions_app.services import get_session

LOCK_HEADER = "X-Lock-Token"
LOCK_TOKEN = OpenApiParameter(
    LOCK_HEADER,
    str,
    OpenApiParameter.HEADER,
    description="The token of the session's lock, if you hold it.",
)
IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description='The version you change, such as `"7"`. Or send expected_version.',
)
SESSION_EXAMPLE = {
    "id": "0199b2a0-8a10-7d12-8f6e-5d1c0a9b7e42",
    "key": "order-1042",
    "agent": "support",
    "subject": "u-100",
    "title": "Where is my order?",
    "status": "open",
    "labels": {"channel": "chat"},
    "metadata": {},
    "state": {"step": "identify"},
    "version": 1,
    "last_seq": 1,
    "log_bytes": 70,
    "parent": None,
    "forked_from_seq": None,
    "created_at": "2026-01-15T09:30:00.000000Z",
    "updated_at": "2026-01-15T09:30:00.000000Z",
    "closed_at": None,
    "expires_at": None,
}


class SessionCallView(ApiView):
    """A call on `/sessions/{session_id}/…`: never beyond what the key is bound to."""

    scopes: ClassVar[dict[str, str]] = {
        "GET": SESSIONS_READ,
        "POST": SESSIONS_WRITE,
        "PUT": SESSIONS_WRITE,
        "PATCH": SESSIONS_WRITE,
        "DELETE": SESSIONS_WRITE,
    }

    def initial(self, request: ApiRequest, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        super().initial(request, *args, **kwargs)
        bound_to = self.caller.session_id
        if bound_to is not None and kwargs.get("session_id", bound_to) != bound_to:
            raise SessionNotFound

    def load(self, session_id: UUID) -> Session:
        return get_session(
            self.caller.project_id, session_id, subject=self.caller.subject
        )

    @property
    def writer(self) -> dict[str, Any]:
        """Who writes, and what a service checks it against."""
        return {
            "actor": self.caller.actor,
            "subject": self.caller.subject,
            "lock_token": read_lock_token(self.request),
        }


def read_lock_token(request: Any) -> UUID | None:
    text = request.headers.get(LOCK_HEADER)
    if text is None:
        return None
    try:
        return UUID(text)
    except ValueError:
        raise FieldError(
            LOCK_HEADER, "invalid", "this is the token that the lock call returned"
        ) from None
