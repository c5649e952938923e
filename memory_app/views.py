"""Pages of memory: find a subject, read what is known and from where, set it right."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.shortcuts import redirect, render

from access_app.pages import (
    PageRequest,
    back,
    project_action,
    project_page,
    read_reason,
)
from access_app.roles import Right
from access_app.services import change_settings
from agentstate.api.pagination import paginate
from agentstate.errors import FieldError
from memory_app import services
from memory_app.bulk import Change, change_all
from memory_app.export import export_subject
from memory_app.forgetting.services import (
    EVERYWHERE,
    FACT,
    forget_fact,
    forget_facts,
    forget_subject,
)
from memory_app.forms import MemoryFilters, SubjectFilters
from memory_app.looks import note_export, note_look, note_looks
from memory_app.models import Fact, FactRevision, Receipt, Status, Subject
from memory_app.policy import CHOICES, Policy, changed
from memory_app.provenance import sources_of
from memory_app.spreadsheet import facts_as_csv

LIST_PAGE = 50
FACTS_PAGE = 30
REVISIONS_SHOWN = 100
BULK_MOST = 200


@project_page(Right.SEE_MEMORY)
def memory(request: PageRequest) -> HttpResponse:
    """The review queue, subjects by name, or facts by their text."""
    filters = MemoryFilters(request.GET)
    project_id = request.visit.project.id
    view = filters.value("view") or "subjects"
    facts = Fact.objects.in_project(project_id).defer("terms")
    params = {"cursor": request.GET.get("cursor"), "limit": LIST_PAGE}
    shown: dict[str, Any] = {"filters": filters, "view": view}
    proposed = facts.filter(status=Status.PROPOSED)
    shown["proposed"] = len(proposed.values_list("pk")[:1001])
    q = filters.value("q")
    if view == "subjects":
        subjects = Subject.objects.filter(project_id=project_id)
        if q:
            subjects = subjects.filter(subject__icontains=q)
        page: Any = paginate(subjects, params, ["subject"])
        names = [each.subject for each in page.items]
        shown["counts"] = Fact.objects.count_by_subject(project_id, names)
    else:
        facts = proposed if view == "review" else facts.current()
        page = paginate(facts.containing(q) if q else facts, params, ["-id"])
        shown["sources"] = sources_of(page.items)
        shown_subjects = {fact.subject for fact in page.items}
        note_looks(project_id, shown_subjects, request.visit.actor)
    return render(request, "memory_app/memory.html", shown | {"page": page})


@project_page(Right.SEE_MEMORY)
def subject(request: PageRequest) -> HttpResponse:
    filters = SubjectFilters(request.GET)
    project_id = request.visit.project.id
    name = filters.value("subject")
    if not name:
        raise Http404("No subject is named.")
    found = filters.apply(Fact.objects.in_project(project_id).about(name))
    params = {"cursor": request.GET.get("cursor"), "limit": FACTS_PAGE}
    page = paginate(found.defer("terms"), params, ["-id"])
    note_look(project_id, name, request.visit.actor)
    shown = {
        "subject": name,
        "filters": filters,
        "page": page,
        "sources": sources_of(page.items),
    }
    return render(request, "memory_app/subject.html", shown)


@project_page(Right.SEE_MEMORY)
def fact(request: PageRequest, fact_id: UUID) -> HttpResponse:
    project_id = request.visit.project.id
    found = services.get_fact(project_id, fact_id)
    note_look(project_id, found.subject, request.visit.actor)
    revisions = FactRevision.objects.filter(project_id=project_id, memory=found)
    shown = {
        "fact": found,
        "sources": sources_of([found], most=50),
        "revisions": revisions.order_by("-version")[:REVISIONS_SHOWN],
    }
    return render(request, "memory_app/fact.html", shown)


SOURCES = {
    "remember": (
        ("user", "The user said it, and an agent asks to remember it"),
        ("agent", "An agent inferred it, and asks to remember it"),
    ),
    "promote": (
        ("user", "The user said it, found when a session is closed"),
        ("agent", "Inferred from the talk when a session is closed"),
    ),
}


@project_page(Right.MANAGE)
def policy(request: PageRequest) -> HttpResponse:
    """What becomes memory at once, what waits for a reviewer, what is dropped."""
    now = Policy.of(request.visit.project.settings)
    rows = [
        (f"{name}-{kind}", text, getattr(now, name)[kind])
        for name, kinds in SOURCES.items()
        for kind, text in kinds
    ]
    return render(request, "memory_app/policy.html", {"rows": rows, "choices": CHOICES})


@project_action(Right.MANAGE)
def change_policy(request: PageRequest) -> HttpResponse:
    wanted: dict[str, dict[str, str]] = {}
    for name, kinds in SOURCES.items():
        for kind, _ in kinds:
            choice = request.POST.get(f"{name}-{kind}", "")
            if choice not in CHOICES:
                raise FieldError("", "unknown_choice", "Choose one of the three.")
            wanted.setdefault(name, {})[kind] = choice
    project = request.visit.project
    change_settings(
        project.id,
        {"memory": changed(project.settings, wanted)},
        actor=request.visit.actor,
        reason=read_reason(request),
    )
    messages.success(request, "The policy is changed; it holds from now on.")
    return back(request)


@project_action(Right.REVIEW)
def correct(request: PageRequest, fact_id: UUID) -> HttpResponse:
    services.correct(
        request.visit.project.id,
        fact_id,
        {"fact": _text(request)},
        expected_version=_version(request),
        actor=request.visit.actor,
        reason=read_reason(request),
    )
    messages.success(request, "The fact is corrected.")
    return back(request)


def _text(request: PageRequest) -> str:
    text = request.POST.get("fact", "").replace("\r\n", "\n").strip()
    if not 0 < len(text) <= 4000:
        raise FieldError("", "invalid", "A fact has 1 to 4,000 characters.")
    return text


def _version(request: PageRequest) -> int:
    text = request.POST.get("version", "")
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise FieldError("", "required", "Say which version you change.")
    return int(text)


@project_action(Right.REVIEW)
def decide(request: PageRequest, fact_id: UUID) -> HttpResponse:
    """Approve or reject one fact."""
    decision = request.POST.get("decision", "")
    if decision not in ("approve", "reject"):
        raise FieldError("", "unknown_decision", "Approve or reject.")
    decided = services.approve if decision == "approve" else services.reject
    decided(
        request.visit.project.id,
        fact_id,
        expected_version=_version(request),
        actor=request.visit.actor,
        reason=read_reason(request),
    )
    done = "approved" if decision == "approve" else "rejected"
    messages.success(request, f"The fact is {done}.")
    return back(request)


@project_action(Right.FORGET)
def forget(request: PageRequest, fact_id: UUID) -> HttpResponse:
    scope = EVERYWHERE if request.POST.get("scope") == EVERYWHERE else FACT
    receipt = forget_fact(
        request.visit.project.id,
        fact_id,
        actor=request.visit.actor,
        scope=scope,
        reason=read_reason(request),
    )
    return _to_receipt(request, receipt)


def _to_receipt(request: PageRequest, receipt: Receipt) -> HttpResponse:
    messages.success(request, "It is forgotten. This is the receipt.")
    return redirect("memory:receipt", request.visit.project.slug, receipt.id)


@project_action(Right.REVIEW)
def bulk(request: PageRequest) -> HttpResponse:
    """Approve, reject or forget the facts that were ticked, all or none."""
    visit, action = request.visit, request.POST.get("action", "")
    ids = _ids(request)
    reason = read_reason(request)
    if action == "forget":
        visit.require(Right.FORGET)
        forget_facts(visit.project.id, ids, actor=visit.actor, reason=reason)
    elif action in ("approve", "reject"):
        changes = [Change(action, id_, any_version=True, reason=reason) for id_ in ids]
        change_all(visit.project.id, changes, actor=visit.actor)
    else:
        raise FieldError("", "unknown_action", "Approve, reject or forget.")
    messages.success(request, f"Done for {len(ids)} fact{'s' * (len(ids) != 1)}.")
    return back(request)


def _ids(request: PageRequest) -> list[UUID]:
    try:
        ids = [UUID(text) for text in request.POST.getlist("fact")]
    except ValueError:
        raise FieldError("", "invalid", "This is no id of a fact.") from None
    if not 0 < len(ids) <= BULK_MOST:
        raise FieldError("", "invalid", f"Tick 1 to {BULK_MOST} facts.")
    return ids


@project_page(Right.FORGET)
def forgetting(request: PageRequest) -> HttpResponse:
    """What forgetting a subject would reach: counted by doing it and undoing it."""
    name = _subject(request.GET)
    counted = forget_subject(
        request.visit.project.id, name, actor=request.visit.actor, dry_run=True
    )
    shown = {"subject": name, "counted": counted}
    return render(request, "memory_app/forgetting.html", shown)


@project_action(Right.FORGET)
def forget_all(request: PageRequest) -> HttpResponse:
    name = _subject(request.POST)
    if request.POST.get("typed", "") != name:
        raise FieldError("", "not_confirmed", "Type the subject's name to confirm.")
    receipt = forget_subject(
        request.visit.project.id,
        name,
        actor=request.visit.actor,
        reason=read_reason(request),
    )
    return _to_receipt(request, receipt)


def _subject(data: Any) -> str:
    name: str = data.get("subject", "")
    if not 0 < len(name) <= 255 or "\0" in name:
        raise FieldError("", "required", "Name a subject.")
    return name


@project_page(Right.FORGET)
def receipt(request: PageRequest, receipt_id: UUID) -> HttpResponse:
    found = Receipt.objects.get(project_id=request.visit.project.id, id=receipt_id)
    return render(request, "memory_app/receipt.html", {"receipt": found})


@project_action(Right.REVIEW)
def export(request: PageRequest) -> StreamingHttpResponse:
    """All that is known about a subject, as JSON, or its facts as CSV."""
    name, visit = _subject(request.POST), request.visit
    as_csv = request.POST.get("format") == "csv"
    kind = "csv" if as_csv else "json"
    note_export(visit.project.id, name, kind, visit.actor, read_reason(request))
    pieces: Iterator[str]
    if as_csv:
        pieces = facts_as_csv(visit.project.id, name)
    else:
        pieces = export_subject(visit.project.id, name)
    return StreamingHttpResponse(
        (piece.encode() for piece in pieces),
        content_type="text/csv; charset=utf-8" if as_csv else "application/json",
        headers={"Content-Disposition": f'attachment; filename="subject.{kind}"'},
    )
