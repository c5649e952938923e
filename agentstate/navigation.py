"""What the frame of every page shows: the project's pages, and the other projects."""

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from access_app.models import Project
from access_app.pages import take_typed
from access_app.roles import Right, Visit

PROJECTS_IN_MENU = 30
THEMES = ("light", "dark")


@dataclass(frozen=True)
class Entry:
    """One entry of the menu. `shortcut` is the letter that follows g."""

    label: str
    url_name: str
    right: Right
    shortcut: str


ENTRIES = (
    Entry("Overview", "overview", Right.SEE_SESSIONS, "o"),
    Entry("Runs", "runs:list", Right.SEE_SESSIONS, "r"),
    Entry("Inbox", "runs:inbox", Right.SEE_SESSIONS, "i"),
    Entry("Workers", "runs:workers", Right.SEE_SESSIONS, "w"),
    Entry("Sessions", "sessions:list", Right.SEE_SESSIONS, "s"),
    Entry("Artifacts", "sessions:artifacts", Right.SEE_PAYLOADS, "a"),
    Entry("Memory", "memory:memory", Right.SEE_MEMORY, "m"),
    Entry("Search", "sessions:search", Right.SEE_PAYLOADS, "f"),
    Entry("Audit", "access:audit", Right.SEE_AUDIT, "l"),
    Entry("Settings", "access:settings", Right.MANAGE, "e"),
)


@dataclass(frozen=True)
class Link:
    label: str
    url: str
    shortcut: str
    is_current: bool


def frame(request: HttpRequest) -> dict[str, Any]:
    """A context processor: nothing but the zone outside a project."""
    visit: Visit | None = getattr(request, "visit", None)
    theme = request.COOKIES.get("theme", "")
    shown: dict[str, Any] = {
        "zone": timezone.get_current_timezone_name(),
        "theme": theme if theme in THEMES else "",
    }
    if visit is None:
        return shown
    shown["typed"] = take_typed(request)
    return shown | {
        "visit": visit,
        "may": {right.value: True for right in visit.rights},
        "navigation": links(visit, request.path),
        "projects": _projects(visit.user),
        "silence_seconds": 2 * settings.SOCKET_PING_SECONDS,
    }


def links(visit: Visit, path: str) -> list[Link]:
    allowed = [entry for entry in ENTRIES if visit.may(entry.right)]
    urls = [reverse(e.url_name, args=[visit.project.slug]) for e in allowed]
    current = max((u for u in urls if path.startswith(u)), key=len, default="")
    return [
        Link(entry.label, url, entry.shortcut, url == current)
        for entry, url in zip(allowed, urls, strict=True)
    ]


def _projects(user: User) -> list[Project]:
    found = Project.objects.visible_to(user).order_by("name")
    return list(found.only("name", "slug")[:PROJECTS_IN_MENU])
