"""Filters of a list under a name: for oneself, or for all members of the project.

The filters stand in the address, so that a view can be sent; a name spares one from
keeping the address somewhere else.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode
from uuid import UUID

from django.db import transaction
from django.db.models import Q
from django.http import QueryDict

from access_app.errors import SavedViewNotFound, TooManySavedViews
from access_app.models import Project, SavedView
from access_app.roles import Right, Visit
from access_app.services import record_audit
from agentstate.errors import FieldError

PAGES = ("runs", "sessions")
MOST = 50  # of a page, for each person and for the project
NAME_MAX, QUERY_MAX = 80, 2000
NOT_FILTERS = {"cursor", "action"}  # of an address


@dataclass(frozen=True)
class Shown:
    """A view as a list shows it. `may_delete`: by the one who looks."""

    id: UUID
    name: str
    query: str
    is_shared: bool
    is_current: bool
    may_delete: bool


def kept_query(query: QueryDict) -> str:
    """The filters of an address, in one order: no cursor, nothing that is empty."""
    pairs = [
        (name, value)
        for name, values in sorted(query.lists())
        for value in values
        if value and name not in NOT_FILTERS
    ]
    return urlencode(pairs)


def views_of(visit: Visit, page: str, query: QueryDict) -> list[Shown]:
    """The project's views of a page and one's own. `query` is what is shown now."""
    kept = kept_query(query)
    return [
        Shown(
            id=view.id,
            name=view.name,
            query=view.query,
            is_shared=view.user_id is None,
            is_current=view.query == kept,
            may_delete=view.user_id is not None or visit.may(Right.STEER),
        )
        for view in sorted(_seen(visit, page), key=lambda v: v.name.casefold())
    ]


def _seen(visit: Visit, page: str) -> Iterable[SavedView]:
    mine = Q(user=visit.user) | Q(user=None)
    return SavedView.objects.filter(mine, project=visit.project, page=page)[: 2 * MOST]


@transaction.atomic
def save_view(visit: Visit, page: str, name: str, query: str, *, shared: bool) -> str:
    """Keep a query under a name, and return it as it is kept.

    The same name again replaces what it stood for.

    Raises FieldError, TooManySavedViews; PermissionDenied for a view of the project
    by one who may only look.
    """
    visit.require(Right.STEER if shared else Right.SEE_SESSIONS)
    name, kept = name.strip(), kept_query(QueryDict(query))
    _check(page, name, kept)
    # In turn, so that the count below holds.
    Project.objects.select_for_update(no_key=True).get(pk=visit.project.pk)
    owner = None if shared else visit.user
    views = SavedView.objects.filter(project=visit.project, page=page, user=owner)
    before = views.filter(name=name).first()
    if before is None and views.count() >= MOST:
        raise TooManySavedViews(limit=MOST)
    view = before or SavedView(project=visit.project, page=page, user=owner, name=name)
    replaced = view.query if before else None
    view.query = kept
    view.save()
    if shared:
        _audit(visit, "view.saved", view, before=replaced, after=kept)
    return kept


@transaction.atomic
def delete_view(visit: Visit, view_id: UUID) -> str:
    """Delete one's own view, or one of the project. Returns its page."""
    mine = Q(user=visit.user)
    if visit.may(Right.STEER):
        mine |= Q(user=None)
    views = SavedView.objects.filter(mine, project=visit.project, id=view_id)
    view = views.select_for_update().first()
    if view is None:
        raise SavedViewNotFound
    if view.user_id is None:
        _audit(visit, "view.deleted", view, before=view.query, after=None)
    view.delete()
    return view.page


def forget_views(project_id: UUID, names: Callable[[str], bool]) -> int:
    """Delete the views of a project whose name or a value `names` what is forgotten."""
    views = SavedView.objects.filter(project_id=project_id)
    ids = [
        view.id
        for view in views
        if names(view.name) or any(names(value) for _, value in parse_qsl(view.query))
    ]
    return views.filter(id__in=ids).delete()[0]


def _check(page: str, name: str, kept: str) -> None:
    if page not in PAGES:
        raise FieldError("page", "unknown_page", "There are no saved views of this.")
    if not 0 < len(name) <= NAME_MAX:
        detail = f"A view has a name of at most {NAME_MAX} characters."
        raise FieldError("name", "invalid", detail)
    if not kept:
        detail = "Nothing is filtered here: there is nothing to keep."
        raise FieldError("query", "required", detail)
    if len(kept) > QUERY_MAX:
        raise FieldError("query", "too_long", "These filters are too long to keep.")


def _audit(
    visit: Visit, action: str, view: SavedView, *, before: str | None, after: str | None
) -> None:
    record_audit(
        visit.project.id,
        visit.actor,
        action,
        f"view:{view.id}",
        before=before and {"name": view.name, "query": before},
        after=after and {"name": view.name, "query": after},
    )
