"""What the chat forms share: drafts of events, and our own key in a payload.

A message becomes events in the plainest way that readers of the log understand. What
that loses, a role that we have no type for or the place of a block, is kept in the
payload under `_source`. A message that does not come back equal even so, or that is not
fit for a known type, is kept whole as one event `<format>.message`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from agentstate.errors import FieldError
from agentstate.json_patch import diff
from sessions_app.event_types import check_event

SOURCE = "_source"

type Payload = dict[str, Any]
type Draft = tuple[str, Payload]  # an event's type and payload


def checked(
    form: str,
    message: Any,
    drafts: list[Draft] | None,
    write: Callable[[Iterable[Draft]], Iterator[Any]],
) -> list[Draft]:
    """Return `drafts` if they are valid and tell all of `message`, else it, whole."""
    if (
        drafts is not None
        and _are_valid(drafts)
        and not diff([message], [*write(drafts)])
    ):
        return drafts
    return [(f"{form}.message", {"message": message})]


def _are_valid(drafts: list[Draft]) -> bool:
    try:
        for index, (event_type, payload) in enumerate(drafts):
            check_event(index, event_type, payload)
    except FieldError:
        return False
    return True


def noted(form: str, payload: Payload, **notes: Any) -> Payload:
    """Return `payload` with notes for the way back, without those that are empty."""
    kept = {name: note for name, note in notes.items() if note not in (None, [], {})}
    return payload | {SOURCE: {"format": form, **kept}} if kept else payload


def split_notes(form: str, payload: Payload) -> tuple[Payload, dict[str, Any]]:
    """Return the payload without our key, and the notes if they are of this form."""
    notes = payload.get(SOURCE)
    if not isinstance(notes, dict) or "format" not in notes:
        return payload, {}
    body = {name: value for name, value in payload.items() if name != SOURCE}
    return body, notes if notes["format"] == form else {}


def with_content(body: Payload, empty: Any) -> tuple[Payload, str | None]:
    """Give a message without usable content the `empty` one, and say what it had."""
    if "content" not in body:
        return {**body, "content": empty}, "absent"
    if body["content"] is None and empty is not None:
        return {**body, "content": empty}, "null"
    return body, None


def restore_content(message: Payload, had: Any) -> None:
    if had == "absent":
        message.pop("content", None)
    elif had == "null":
        message["content"] = None
