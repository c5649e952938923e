"""What the calls on memory share: whose facts a key sees, and where they came from."""

from typing import Any, ClassVar
from uuid import UUID

from rest_framework.response import Response

from access_app.api.views import ApiRequest, ApiView
from access_app.errors import MissingScope
from access_app.scopes import MEMORY_READ, MEMORY_WRITE
from agentstate.api.etags import ANY, etag, read_if_match
from agentstate.errors import FieldError
from memory_app.forgetting.elsewhere import (
    answers_about,
    answers_about_several,
    subjects_in,
)
from memory_app.models import Fact
from memory_app.shown import fact_json
from sessions_app.models import Session

FACT_EXAMPLE = {
    "id": "0199b2a0-7f31-7c02-9a4e-8d2b6c1f0e55",
    "subject": "u-100",
    "fact": "Prefers invoices as PDF",
    "key": "",
    "kind": "preference",
    "status": "active",
    "version": 1,
    "source": {
        "kind": "user",
        "session": "0199b2a0-8a10-7d12-8f6e-5d1c0a9b7e42",
        "agent": "support",
        "seqs": [4],
    },
    "seen_count": 1,
    "confidence": 1.0,
    "pinned": False,
    "metadata": {},
    "valid_from": "2026-01-15T09:30:00.000000Z",
    "valid_to": None,
    "expires_at": None,
    "superseded_by": None,
    "duplicate_of": None,
    "conflicts_with": None,
    "note": "",
    "settled_by": "",
    "embedding": "ok",
    "created_by": "key:4f0c1a9be27d",
    "created_at": "2026-01-15T09:30:00.000000Z",
    "updated_at": "2026-01-15T09:30:00.000000Z",
}


class MemoryView(ApiView):
    """A call on memory. A key bound to a subject never reaches beyond it."""

    scopes: ClassVar[dict[str, str]] = {"GET": MEMORY_READ, "POST": MEMORY_WRITE}
    # Methods that a key bound to one session may use: none of them reads memory.
    for_session_keys: ClassVar[frozenset[str]] = frozenset()

    def initial(self, request: ApiRequest, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        super().initial(request, *args, **kwargs)
        is_session_key = self.caller.session_id is not None
        if is_session_key and request.method not in self.for_session_keys:
            raise MissingScope(
                MEMORY_READ, "This key is bound to one session and sees no memory."
            )

    def reach(self, subject: str | None) -> str:
        """Return the subject meant: the one given, or the one the key is bound to."""
        bound_to = self.caller.subject
        if subject is None:
            subject = bound_to
        if subject is None:
            raise FieldError("subject", "required", "say whom this is about")
        if bound_to is not None and subject != bound_to:
            raise MissingScope(MEMORY_READ, "This key is bound to another subject.")
        return subject

    @property
    def changer(self) -> dict[str, Any]:
        """Who changes a fact, and what a service checks it against."""
        return {"actor": self.caller.actor, "subject": self.caller.subject}

    def answer_session_id(self, response: Response) -> UUID | None:
        """Mark stored answers by their subject, so that forgetting finds them."""
        subjects = subjects_in(response.data)
        if not subjects:
            return None
        if len(subjects) > 1:
            return answers_about_several(self.caller.project_id)
        return answers_about(self.caller.project_id, subjects.pop())


def fact_response(fact: Fact, status: int = 200, **extra: Any) -> Response:
    return Response(
        fact_json(fact) | extra, status=status, headers={"ETag": etag(fact.version)}
    )


def read_expected(request: ApiRequest, body: dict[str, Any]) -> int | None:
    """Return the version that the call names; None is for the service to refuse."""
    if_match = read_if_match(request)
    named = body.pop("expected_version", None)
    if if_match == ANY:
        raise FieldError("If-Match", "bad_etag", "name the version you have seen")
    if if_match is not None and named is not None and if_match != named:
        detail = "this and If-Match name different versions"
        raise FieldError("expected_version", "conflict", detail)
    return if_match if isinstance(if_match, int) else named


def stored_session(
    project_id: UUID, named: str, subject: str | None
) -> tuple[str, str]:
    """Return the id of the session that is meant by id or key, and its agent.

    Of a name that no session has, the name itself. Something that looks like an id must
    be a session of this project (and of the subject that the key is bound to): a fact
    is not to point at what is not there.
    """
    if not named:
        return "", ""
    sessions = Session.objects.in_project(project_id).visible_to(subject, None)
    try:
        wanted = UUID(named)
    except ValueError:
        found = sessions.filter(key=named).values_list("id", "agent").first()
        return (str(found[0]), found[1]) if found else (named, "")
    agent = sessions.filter(id=wanted).values_list("agent", flat=True).first()
    if agent is None:
        raise FieldError(
            "source.session", "session_not_found", "there is no such session here"
        )
    return str(wanted), agent
