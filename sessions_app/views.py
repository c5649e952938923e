"""Pages of sessions: the list, one session, its past, and search across all."""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import render

from access_app.pages import (
    PageRequest,
    back,
    project_action,
    project_page,
    read_reason,
)
from access_app.roles import Right, Visit
from access_app.saved_views import views_of
from agentstate import codec
from agentstate.api.pagination import paginate
from agentstate.charts import bar_chart
from agentstate.templatetags.agentstate import exact
from sessions_app.activity import events_by_hour
from sessions_app.errors import SeqNotFound
from sessions_app.forms import LogFilters, SearchFilters, SessionFilters
from sessions_app.log import read_log
from sessions_app.models import Session
from sessions_app.outline import (
    OutlinePage,
    last_records,
    read_around,
    read_outline,
)
from sessions_app.past import past_of
from sessions_app.search import search_events
from sessions_app.services import close_session, get_session, reopen_session

LIST_PAGE = 50
LOG_PAGE = 100
BODY_BYTES = 256 * 1024  # of a payload, formatted; more is for download


@project_page(Right.SEE_SESSIONS)
def session_list(request: PageRequest) -> HttpResponse:
    visit = request.visit
    filters = SessionFilters(request.GET)
    found = filters.apply(Session.objects.in_project(visit.project.id))
    if filters.errors:
        found = found.none()
    params = {"cursor": request.GET.get("cursor"), "limit": LIST_PAGE}
    page = paginate(found.defer("state", "metadata"), params, ["-id"])
    shown: dict[str, Any] = {
        "filters": filters,
        "page": page,
        "saved_views": views_of(visit, "sessions", request.GET),
    }
    if visit.may(Right.SEE_PAYLOADS):
        ids = [session.id for session in page.items]
        shown["last_records"] = last_records(visit.project.id, ids)
    template = "_session_rows.html" if request.htmx else "session_list.html"
    return render(request, f"sessions_app/{template}", shown)


@project_page(Right.SEE_SESSIONS)
def session_page(request: PageRequest, session_id: UUID) -> HttpResponse:
    session = _session(request, session_id)
    filters = LogFilters(request.GET)
    at_seq = filters.number("at")
    shown = {
        "agent_session": session,
        "filters": filters,
        "log": _log_shown(request.visit, session, filters),
        "marked_seq": filters.number("seq"),
    }
    if request.visit.may(Right.SEE_PAYLOADS):
        shown["past"] = past_of(session, session.last_seq if at_seq is None else at_seq)
    return render(request, "sessions_app/session.html", shown)


def _log_shown(visit: Visit, session: Session, filters: LogFilters) -> OutlinePage:
    if filters.errors:
        return OutlinePage([], False, False)
    # Whoever does not see payloads could guess them word by word.
    may_search = visit.may(Right.SEE_PAYLOADS)
    wanted: dict[str, Any] = {
        "wanted_types": filters.type_list,
        "contains": may_search and filters.value("q") or "",
    }
    seq, before = filters.number("seq"), filters.number("before")
    if seq is not None:
        return read_around(session, seq, LOG_PAGE)
    if (after := filters.number("after")) is not None:
        return read_outline(session, after_seq=after, limit=LOG_PAGE, **wanted)
    return read_outline(
        session, before_seq=before, limit=LOG_PAGE, newest=True, **wanted
    )


@project_page(Right.SEE_SESSIONS)
def log_rows(request: PageRequest, session_id: UUID) -> HttpResponse:
    """The rows before or behind a seq, for the page that is open already."""
    session = _session(request, session_id)
    filters = LogFilters(request.GET)
    shown = {
        "agent_session": session,
        "filters": filters,
        "log": _log_shown(request.visit, session, filters),
        "direction": "later" if filters.number("after") is not None else "earlier",
    }
    return render(request, "sessions_app/_log_rows.html", shown)


@project_page(Right.SEE_PAYLOADS)
def event_body(request: PageRequest, session_id: UUID, seq: int) -> HttpResponse:
    """One event with its payload: a fragment of its row, or a page of its own."""
    session = _session(request, session_id)
    found = read_log(session, after_seq=seq - 1, before_seq=seq + 1, limit=1).events
    if not found:
        raise SeqNotFound
    [event] = found
    shown: dict[str, Any] = {"agent_session": session, "event": event}
    if event.payload_bytes <= BODY_BYTES:
        # Not event.payload, which insists on an object: odd records are shown too.
        shown["value"] = codec.loads(event.payload_text, max_depth=10_000)
    else:
        shown["beginning"] = event.payload_text[: BODY_BYTES // 4]
    template = "_event_body.html" if request.htmx else "event.html"
    return render(request, f"sessions_app/{template}", shown)


@project_page(Right.SEE_PAYLOADS)
def event_download(request: PageRequest, session_id: UUID, seq: int) -> HttpResponse:
    """The payload as it is stored, as a file."""
    session = _session(request, session_id)
    found = read_log(session, after_seq=seq - 1, before_seq=seq + 1, limit=1).events
    if not found:
        raise SeqNotFound
    name = f"{session.id}-{seq}.json"
    return HttpResponse(
        found[0].payload_text,
        content_type="application/json",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


@project_page(Right.SEE_PAYLOADS)
def past(request: PageRequest, session_id: UUID) -> HttpResponse:
    """The session as it was after an event: what the slider shows."""
    session = _session(request, session_id)
    at_seq = LogFilters(request.GET).number("at")
    found = past_of(session, session.last_seq if at_seq is None else at_seq)
    shown = {"agent_session": session, "past": found}
    return render(request, "sessions_app/_past.html", shown)


@project_page(Right.SEE_PAYLOADS)
def state_download(request: PageRequest, session_id: UUID) -> HttpResponse:
    session = _session(request, session_id)
    at_seq = LogFilters(request.GET).number("at")
    found = past_of(session, session.last_seq if at_seq is None else at_seq)
    return HttpResponse(
        codec.dumps(found.state),
        content_type="application/json",
        headers={"Content-Disposition": f'attachment; filename="{session.id}.json"'},
    )


@project_action(Right.STEER)
def close(request: PageRequest, session_id: UUID) -> HttpResponse:
    close_session(
        request.visit.project.id,
        session_id,
        actor=request.visit.actor,
        reason=read_reason(request),
    )
    messages.success(request, "The session is closed.")
    return back(request)


@project_action(Right.STEER)
def reopen(request: PageRequest, session_id: UUID) -> HttpResponse:
    reopen_session(
        request.visit.project.id,
        session_id,
        actor=request.visit.actor,
        reason=read_reason(request),
    )
    messages.success(request, "The session is open again.")
    return back(request)


@project_page(Right.SEE_PAYLOADS)
def search(request: PageRequest) -> HttpResponse:
    """Sessions by their names, and events by their words, day or type."""
    filters = SearchFilters(request.GET)
    project_id = request.visit.project.id
    shown: dict[str, Any] = {"filters": filters}
    if filters.is_used and not filters.errors:
        shown["found"] = search_events(project_id, filters)
        if q := filters.value("q"):
            sessions = Session.objects.in_project(project_id).matching(q)
            shown["sessions"] = sessions.defer("state").order_by("-id")[:10]
        if (span := filters.span()) and not filters.value("q"):
            name = filters.value("type")
            hours = events_by_hour(
                project_id,
                span,
                types=(name,) if name else (),
                agent=filters.value("agent") or "",
            )
            shown["chart"] = bar_chart([(exact(h.begin), h.events) for h in hours])
    return render(request, "sessions_app/search.html", shown)


def _session(request: PageRequest, session_id: UUID) -> Session:
    return get_session(request.visit.project.id, session_id)
