"""The page that shows what a model would be sent now, and what that is made of."""

from uuid import UUID

from django.http import HttpResponse
from django.shortcuts import render

from access_app.pages import PageRequest, project_page
from access_app.roles import Right
from agentstate.errors import AppError
from context_app import beside
from context_app.beside import Section
from context_app.page_forms import PreviewForm
from context_app.tokens import configured_counter
from context_app.view import Wanted, build_context
from sessions_app.models import Session
from sessions_app.services import get_session

BUDGET = 8000


@project_page(Right.SEE_PAYLOADS)
def preview(request: PageRequest, session_id: UUID) -> HttpResponse:
    session = get_session(request.visit.project.id, session_id)
    form = PreviewForm(request.GET)
    shown = {"agent_session": session, "form": form, "budget": BUDGET}
    if not form.errors:
        wanted = Wanted(
            budget=form.value("budget") or BUDGET,
            form=form.value("format") or "neutral",
            at_seq=form.cleaned_data.get("at"),
        )
        sections = _sections(request, session, form.value("recall"))
        try:
            shown["shown"] = build_context(
                session, wanted, sections, configured_counter()
            )
        except AppError as exc:
            shown["refusal"] = exc.detail
    return render(request, "context_app/preview.html", shown)


def _sections(
    request: PageRequest, session: Session, query: str | None
) -> list[Section]:
    """What is told beside the conversation, as a key of all scopes would be told."""
    found = [beside.plan_progress(session)]
    if request.visit.may(Right.SEE_MEMORY):
        lasting = beside.lasting_facts(session)
        found.append(lasting)
        if query:
            known = {told["id"] for told in lasting.told} if lasting else set()
            found.append(beside.recalled_facts(session, query, known))
    return [section for section in found if section is not None]
