"""Facts: remember, list, read, correct, approve, reject, and look at their history."""

from typing import Any
from uuid import UUID

from drf_spectacular.utils import OpenApiParameter
from rest_framework.response import Response

from access_app.api.docs import documented, page
from access_app.api.views import ApiRequest
from access_app.errors import MissingScope
from access_app.scopes import MEMORY_READ, MEMORY_WRITE
from agentstate.api.etags import etag
from agentstate.api.pagination import page_response, paginate
from agentstate.api.params import PageParams, read_params
from agentstate.api.serializers import read_as
from agentstate.errors import FieldError
from memory_app import services
from memory_app.api.base import (
    FACT_EXAMPLE,
    MemoryView,
    fact_response,
    read_expected,
    stored_session,
)
from memory_app.api.serializers import (
    CorrectIn,
    ExpectedVersionIn,
    FactChangesIn,
    FactListOut,
    FactListParams,
    FactOut,
    HistoryOut,
    RememberedOut,
    RememberIn,
    new_fact,
)
from memory_app.bulk import Change, change_all
from memory_app.models import Fact, FactRevision, SourceKind
from memory_app.services import NewFact, get_fact
from memory_app.shown import fact_json, remembered_json, revision_json, source_json
from sessions_app.models import Session
from sessions_app.services import get_session

IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description='The version you change, such as `"3"`. Or send expected_version.',
)
SOURCES_SHOWN = 100
TAGS = ["memory"]
REVISION_EXAMPLE = {
    "version": 2,
    "action": "corrected",
    "changes": {"fact": ["Prefers invoices as PDF", "Prefers invoices on paper"]},
    "actor": "user:reviewer",
    "reason": "the customer wrote in",
    "created_at": "2026-01-16T10:00:00.000000Z",
}


class FactListView(MemoryView):
    for_session_keys = frozenset({"POST"})

    @documented(
        "list_facts",
        "List facts, newest first",
        params=FactListParams,
        responses={200: page(FactOut)},
        response_example={"items": [FACT_EXAMPLE], "next": None},
        description="Of every status; `status=proposed` is the review queue.",
        tags=TAGS,
    )
    def get(self, request: ApiRequest) -> Response:
        params = read_params(request, FactListParams)
        if "subject" in params:
            params["subject"] = self.reach(params["subject"])
        found = Fact.objects.in_project(self.caller.project_id)
        found = found.visible_to(self.caller.subject).defer("terms")
        names = ("subject", "status", "kind", "key", "pinned")
        found = found.filter(**{n: params[n] for n in names if n in params})
        if "session" in params:
            found = found.filter(source_session=params["session"])
        if "q" in params:
            found = found.containing(params["q"])
        return page_response(paginate(found, params, ["-id"]), fact_json)

    @documented(
        "remember",
        "Remember a fact, or several",
        request=RememberIn,
        responses={201: RememberedOut, 200: RememberedOut},
        request_example={
            "subject": "u-100",
            "fact": "Prefers invoices as PDF",
            "kind": "preference",
            "source": {"session": "0199b2a0-8a10-7d12-8f6e-5d1c0a9b7e42", "seqs": [4]},
        },
        response_example=FACT_EXAMPLE | {"outcome": "created", "superseded": None},
        description="What is known already is counted once more and answered with 200. "
        'With `facts`, all or none, answered as `{"items": […]}`. A key bound to one '
        "session writes as its agent, and is answered with `id`, `subject`, `fact`, "
        "`source` and the outcome `remembered` alone.",
        tags=TAGS,
    )
    def post(self, request: ApiRequest) -> Response:
        body = read_as(RememberIn, request)
        given = body.get("facts", [body])
        if self.caller.session_id is not None:
            session = self.own_session(self.caller.session_id, body.get("subject"))
            items = self.remember_unseen(session, body.get("source", {}), given)
            told = {"items": items} if "facts" in body else items[0]
            return Response(told, status=201)
        subject = self.reach(body.get("subject"))
        facts = self.new_facts(subject, body.get("source", {}), given)
        results = services.remember_all(
            self.caller.project_id, facts, actor=self.caller.actor
        )
        status = 201 if any(result.is_new for result in results) else 200
        if "facts" in body:
            items = [remembered_json(result) for result in results]
            return Response({"items": items}, status=status)
        return Response(
            remembered_json(results[0]),
            status=status,
            headers={"ETag": etag(results[0].fact.version)},
        )

    def own_session(self, session_id: UUID, subject: str | None) -> Session:
        """The session that the key is bound to. Raises FieldError, MissingScope."""
        session = get_session(self.caller.project_id, session_id)
        if not session.subject:
            raise FieldError("subject", "required", "the session is about nobody")
        if subject not in (None, session.subject):
            raise MissingScope(MEMORY_WRITE, "This key is bound to another subject.")
        return session

    def remember_unseen(
        self, session: Session, source: dict[str, Any], given: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Remember what an agent found in its own session, and tell it nothing else.

        What was known before, a key that sees no memory is not told.
        """
        facts = []
        for at, each in enumerate(given):
            told = {"kind": SourceKind.AGENT} | source | each.get("source", {})
            path = f"facts[{at}]." if len(given) > 1 else ""
            check_own_source(session, told, each, path)
            facts.append(
                new_fact(
                    session.subject,
                    {**each, "source": told},
                    str(session.pk),
                    session.agent,
                )
            )
        results = services.remember_all(
            self.caller.project_id, facts, actor=self.caller.actor
        )
        return [
            {
                "id": str(result.fact.id),
                "subject": session.subject,
                "fact": fact.fact,
                "source": {
                    "kind": fact.source_kind,
                    "session": fact.session,
                    "agent": fact.agent,
                    "seqs": list(fact.seqs),
                },
                "outcome": "remembered",
            }
            for result, fact in zip(results, facts, strict=True)
        ]

    def new_facts(
        self, subject: str, source: dict[str, Any], given: list[dict[str, Any]]
    ) -> list[NewFact]:
        sessions: dict[str, tuple[str, str]] = {}
        facts = []
        for each in given:
            each = {**each, "source": source | each.get("source", {})}
            named = each["source"].get("session", "")
            if named not in sessions:
                sessions[named] = stored_session(
                    self.caller.project_id, named, self.caller.subject
                )
            facts.append(new_fact(subject, each, *sessions[named]))
        return facts


def check_own_source(
    session: Session, source: dict[str, Any], fact: dict[str, Any], path: str
) -> None:
    """Raise FieldError for what a key bound to a session may not say of a fact."""
    if source.get("session", "") not in ("", str(session.pk)):
        raise FieldError(
            f"{path}source.session", "session_not_found", "this key sees one session"
        )
    if source["kind"] == SourceKind.STAFF:
        raise FieldError(f"{path}source.kind", "not_allowed", "an agent is not staff")
    if fact.get("pinned"):
        raise FieldError(f"{path}pinned", "not_allowed", "this key may pin nothing")


class FactView(MemoryView):
    scopes = {"GET": MEMORY_READ, "PATCH": MEMORY_WRITE}

    @documented(
        "get_fact",
        "Read a fact",
        responses={200: FactOut},
        response_example=FACT_EXAMPLE,
        errors=[404],
        tags=TAGS,
    )
    def get(self, request: ApiRequest, fact_id: UUID) -> Response:
        read_params(request)
        return fact_response(
            get_fact(self.caller.project_id, fact_id, subject=self.caller.subject)
        )

    @documented(
        "correct_fact",
        "Correct a fact",
        request=CorrectIn,
        responses={200: FactOut},
        request_example={
            "fact": "Prefers invoices on paper",
            "expected_version": 1,
            "reason": "the customer wrote in",
        },
        response_example=FACT_EXAMPLE | {"version": 2, "settled_by": "user:reviewer"},
        headers=[IF_MATCH],
        errors=[404, 428],
        description="A corrected fact is settled: no promotion from older talk "
        "replaces it. The earlier text stays in the history.",
        tags=TAGS,
    )
    def patch(self, request: ApiRequest, fact_id: UUID) -> Response:
        body = read_as(CorrectIn, request)
        expected = read_expected(request, body)
        reason = body.pop("reason")
        fact = services.correct(
            self.caller.project_id,
            fact_id,
            body,
            expected_version=expected,
            reason=reason,
            **self.changer,
        )
        return fact_response(fact)


class ApproveView(MemoryView):
    @documented(
        "approve_fact",
        "Approve a proposed fact",
        request=ExpectedVersionIn,
        responses={200: FactOut},
        request_example={"expected_version": 1, "reason": "confirmed by mail"},
        response_example=FACT_EXAMPLE | {"version": 2},
        headers=[IF_MATCH],
        errors=[404, 428],
        description="It supersedes the facts that it contradicts.",
        tags=TAGS,
    )
    def post(self, request: ApiRequest, fact_id: UUID) -> Response:
        body = read_as(ExpectedVersionIn, request)
        fact = services.approve(
            self.caller.project_id,
            fact_id,
            expected_version=read_expected(request, body),
            reason=body["reason"],
            **self.changer,
        )
        return fact_response(fact)


class RejectView(MemoryView):
    @documented(
        "reject_fact",
        "Say that a fact is wrong",
        request=ExpectedVersionIn,
        responses={200: FactOut},
        request_example={"expected_version": 1, "reason": "a joke"},
        response_example=FACT_EXAMPLE | {"version": 2, "status": "rejected"},
        headers=[IF_MATCH],
        errors=[404, 428],
        description="No promotion proposes it again.",
        tags=TAGS,
    )
    def post(self, request: ApiRequest, fact_id: UUID) -> Response:
        body = read_as(ExpectedVersionIn, request)
        fact = services.reject(
            self.caller.project_id,
            fact_id,
            expected_version=read_expected(request, body),
            reason=body["reason"],
            **self.changer,
        )
        return fact_response(fact)


class ChangeFactsView(MemoryView):
    @documented(
        "change_facts",
        "Correct, approve or reject many facts, all or none",
        request=FactChangesIn,
        responses={200: FactListOut},
        request_example={
            "items": [
                {
                    "op": "reject",
                    "id": "0199b2a0-7f31-7c02-9a4e-8d2b6c1f0e55",
                    "expected_version": 1,
                }
            ],
            "reason": "import of a wrong file",
        },
        response_example={
            "items": [FACT_EXAMPLE | {"version": 2, "status": "rejected"}]
        },
        errors=[404, 428],
        tags=TAGS,
    )
    def post(self, request: ApiRequest) -> Response:
        body = read_as(FactChangesIn, request)
        changes = [_change(item, body["reason"]) for item in body["items"]]
        facts = change_all(self.caller.project_id, changes, **self.changer)
        return Response({"items": [fact_json(fact) for fact in facts]})


def _change(item: dict[str, Any], reason: str) -> Change:
    values = dict(item)
    return Change(
        op=values.pop("op"),
        fact_id=values.pop("id"),
        expected_version=values.pop("expected_version", None),
        reason=values.pop("reason") or reason,
        values=values,
    )


class HistoryView(MemoryView):
    @documented(
        "fact_history",
        "Who changed a fact, when and why",
        params=PageParams,
        responses={200: HistoryOut},
        response_example={"items": [REVISION_EXAMPLE], "next": None, "sources": []},
        errors=[404],
        tags=TAGS,
    )
    def get(self, request: ApiRequest, fact_id: UUID) -> Response:
        params = read_params(request, PageParams)
        project_id = self.caller.project_id
        fact = get_fact(project_id, fact_id, subject=self.caller.subject)
        revisions = FactRevision.objects.filter(project_id=project_id, memory=fact)
        found = paginate(revisions, params, ["-version"])
        sources = fact.sources.filter(project_id=project_id).order_by("-id")
        return Response(
            {
                "items": [revision_json(revision) for revision in found.items],
                "next": found.next,
                "sources": [source_json(s) for s in sources[:SOURCES_SHOWN]],
            }
        )
