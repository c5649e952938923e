"""Filters and tags that pages of several apps use."""

from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django import template
from django.template import Context
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from agentstate import json_html

register = template.Library()

register.filter("json_tree", json_html.json_tree)


@register.filter
def visible(value: Any) -> str:
    """Any text or named thing, with U+0000 shown as its symbol; None as nothing."""
    return "" if value is None else json_html.visible(str(value))


@register.filter
def when(at: datetime | None) -> SafeString | str:
    """A time: relative once the page's script has seen it, exact on hover.

    Without script it reads as the exact time, with its offset, in the reader's zone if
    a cookie names it, else in UTC.
    """
    if at is None:
        return "–"
    return format_html(
        '<time datetime="{}" data-when>{}</time>', _instant(at), exact(at)
    )


@register.filter
def exact(at: datetime) -> str:
    local = timezone.localtime(at)
    offset = local.strftime("%:z")
    zone = "UTC" if offset == "+00:00" else offset
    return f"{local:%Y-%m-%d %H:%M:%S} {zone}"


def _instant(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@register.filter
def get(mapping: dict[Any, Any] | None, key: Any) -> Any:
    """An item by its key; None too where there is no mapping (a name not passed)."""
    return mapping.get(key) if mapping else None


@register.simple_tag(takes_context=True)
def query(context: Context, **changes: Any) -> str:
    """The page's own query with some values changed; None or "" takes one out."""
    values = dict(context["request"].GET.lists())
    values |= {name: [value] for name, value in changes.items()}
    kept = {n: [v for v in vs if v not in (None, "")] for n, vs in values.items()}
    return f"?{urlencode(kept, doseq=True)}"


@register.filter
def words(name: str) -> str:
    """A name of the API as words: in_progress, in progress."""
    return name.replace("_", " ")


@register.filter
def instant(text: str) -> datetime:
    """A time as the API writes it, as a time."""
    return datetime.fromisoformat(text)


@register.filter
def at_most(count: int) -> str:
    return "1,000+" if count > 1000 else f"{count:,}"


@register.filter
def took(row: Any) -> str:
    """How long something took that was made and has ended, or a dash."""
    if row.ended_at is None:
        return "–"
    return seconds_text((row.ended_at - row.created_at).total_seconds())


@register.filter
def seconds_text(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


@register.filter
def is_text(value: Any) -> bool:
    return isinstance(value, str)
