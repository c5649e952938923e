"""What a model sees of a session."""

from typing import Any
from uuid import UUID

from django.conf import settings
from rest_framework.response import Response

from access_app.api.docs import documented
from access_app.api.views import ApiRequest
from access_app.scopes import MEMORY_READ, RUNS_READ
from agentstate.api.params import read_params
from context_app import beside
from context_app.api.serializers import ContextOut, ContextParams, default_budget
from context_app.beside import Section
from context_app.shown import Shown
from context_app.tokens import configured_counter
from context_app.view import Wanted, build_context
from sessions_app.api.base import SessionCallView
from sessions_app.models import Session

CONTEXT_EXAMPLE = {
    "messages": [{"role": "user", "content": "Where is order 1042?"}],
    "system": None,
    "manifest": {
        "at_seq": 2,
        "format": "openai",
        "budget_tokens": 8000,
        "counter": "estimate",
        "tokens": {"total": 11, "instructions": 0, "conversation": 11},
        "seqs": [2],
        "covered": [],
        "left_out": [],
        "not_shown": [],
        "told_as_text": [],
        "shortened": [],
        "open_calls": [],
        "facts": [],
        "facts_left_out": None,
        "plan": None,
        "working_memory": [],
    },
}


class ContextView(SessionCallView):
    @documented(
        "get_context",
        "Read what a model should see of a session, ready to send",
        params=ContextParams,
        responses={200: ContextOut},
        response_example=CONTEXT_EXAMPLE,
        errors=[404],
        description="Within the budget, or 422 `budget_too_small` with `least_tokens`. "
        "The manifest says what is in it, what stands for the rest, and how to fetch "
        "that. The same log and parameters give the same answer.",
        tags=["context"],
    )
    def get(self, request: ApiRequest, session_id: UUID) -> Response:
        params = read_params(request, ContextParams)
        session = self.load(session_id)
        wanted = read_wanted({"tools": self.caller.tool_allowlist} | params)
        sections, withheld = self._sections(session, params)
        shown = build_context(session, wanted, sections, configured_counter())
        return Response(context_json(shown, wanted, withheld))

    def _sections(
        self, session: Session, params: dict[str, Any]
    ) -> tuple[list[Section], str | None]:
        """What is told beside the conversation, and why facts are not."""
        found: list[Section | None] = []
        withheld = self._facts_withheld()
        if withheld is None:
            lasting = beside.lasting_facts(session)
            found.append(lasting)
            if query := params.get("recall"):
                known = {told["id"] for told in lasting.told} if lasting else set()
                found.append(beside.recalled_facts(session, query, known))
        elif params.get("recall"):
            self.caller.require_scope(MEMORY_READ)
        if params.get("plan", True) and self.caller.has_scope(RUNS_READ):
            found.append(beside.plan_progress(session))
        found.append(beside.working_memory(session, params.get("working_memory", ())))
        return [section for section in found if section is not None], withheld

    def _facts_withheld(self) -> str | None:
        """Memory is beyond what a key bound to one session may see."""
        if self.caller.session_id is not None:
            return "This key is bound to one session and sees no memory."
        if not self.caller.has_scope(MEMORY_READ):
            return f"This key does not have the scope {MEMORY_READ}."
        return None


def read_wanted(params: dict[str, Any]) -> Wanted:
    tools = params.get("tools")
    return Wanted(
        budget=params.get("budget_tokens", default_budget()),
        form=params.get("format", "neutral"),
        at_seq=params.get("at_seq"),
        tools=None if tools is None else frozenset(tools),
        keep=frozenset(params.get("keep", ())),
    )


def context_json(shown: Shown, wanted: Wanted, withheld: str | None) -> dict[str, Any]:
    manifest = shown.manifest()
    at_seq = manifest.pop("at_seq")
    return {
        "messages": shown.messages,
        "system": shown.system,
        "manifest": {
            "at_seq": at_seq,
            "format": wanted.form,
            "budget_tokens": wanted.budget,
            "counter": settings.TOKENIZER,
            **manifest,
            "facts_left_out": withheld,
        },
    }
