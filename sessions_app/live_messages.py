"""How what a socket's subscription has to tell is written: JSON, or rows of HTML.

Each event is written once, whoever is told, and a whole batch once for all who stand at
the same place.
"""

from collections.abc import Callable
from typing import Any, Literal

from django.template.loader import render_to_string

from agentstate import codec
from sessions_app import feed
from sessions_app.feed import FeedEvent, Position
from sessions_app.log import StoredEvent, event_json
from sessions_app.outline import HEAD_CHARS, OutlineEvent
from sessions_app.tailer import Batch, Item, Place

type Format = Literal["json", "html"]
ROW = "sessions_app/_event.html"


def replayed_to(batch: Batch, head: int) -> int | None:
    """`head`, if the batch holds events that were there before somebody followed."""
    first = batch.items[0].place
    return head if isinstance(first, int) and first <= head else None


def batch_message(
    id_: str, batch: Batch, write: Callable[[Item], str], replayed: int | None = None
) -> str:
    """The push of one batch. `write` makes an item's part, if there is none yet.

    Events up to seq `replayed` were there before.
    """
    first, last = batch.items[0], batch.items[-1]
    head: dict[str, Any] = {"type": "events", "id": id_}
    if isinstance(last.place, Position):
        head["cursor"] = feed.encode_position(batch.place)
    else:
        head |= {"first_seq": first.place, "last_seq": last.place}
    if replayed is not None:
        head["replayed_to"] = replayed
    head["events"] = [codec.RawJSON(write(item)) for item in batch.items]
    return codec.dumps(head)


def change_message(id_: str, place: Place) -> str:
    """The push that tells only that something happened."""
    message = {"type": "changed", "id": id_}
    if isinstance(place, Position):
        return codec.dumps(message | {"cursor": feed.encode_position(place)})
    return codec.dumps(message | {"last_seq": place})


def html_message(id_: str, batch: Batch, write: Callable[[Item], str]) -> str:
    first, last = batch.items[0], batch.items[-1]
    return codec.dumps(
        {
            "type": "events",
            "id": id_,
            "first_seq": first.place,
            "last_seq": last.place,
            "html": "".join(write(item) for item in batch.items),
        }
    )


def write_json(item: Item) -> str:
    if "json" not in item.written:
        data = event_json(item.event)
        if isinstance(item.place, Position):
            found = FeedEvent(item.session_id, item.agent, item.place, item.event)
            data |= {"session": str(found.session_id), "agent": found.agent}
            data["cursor"] = feed.encode_position(item.place)
        item.written["json"] = codec.dumps(data)
    text: str = item.written["json"]
    return text


def row_writer(slug: str, *, show_payloads: bool) -> Callable[[Item], str]:
    """Return what writes an item as a row of the session's page."""
    key = ("html", show_payloads)

    def write(item: Item) -> str:
        if key not in item.written:
            item.written[key] = render_to_string(
                ROW,
                {
                    "event": _outline(item.event),
                    "slug": slug,
                    "session_id": item.session_id,
                    "show": show_payloads,
                },
            )
        text: str = item.written[key]
        return text

    return write


def _outline(event: StoredEvent) -> OutlineEvent:
    return OutlineEvent(
        event.seq,
        event.event_id,
        event.type,
        event.payload_text[:HEAD_CHARS],
        event.payload_bytes,
        event.run_id,
        event.step_id,
        event.actor,
        event.occurred_at,
        event.created_at,
    )
