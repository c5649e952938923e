"""The project's feed: every event of every session, in one order, none missed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agentstate_client import codec
from agentstate_client.call import Call, filled, joined, listing, path_to
from agentstate_client.models import FeedEvent, Page
from agentstate_client.sse import Message
from agentstate_client.streams import StreamCall

LATEST = "latest"


def list_page(
    *,
    after: str | None = None,
    types: Iterable[str] | None = None,
    agent: str | None = None,
    session: str | None = None,
    limit: int | None = None,
) -> Call[Page[FeedEvent]]:
    """List the project's events behind `after`: the `cursor` of an earlier page.

    `after="latest"` gives the cursor of the feed's present end. `message.*` in `types`
    names a whole family.
    """
    return listing(
        path_to("events"),
        FeedEvent.from_json,
        _filters(types, agent, session) | {"cursor": after, "limit": limit},
    )


def stream(
    *,
    after: str | None = None,
    types: Iterable[str] | None = None,
    agent: str | None = None,
) -> StreamCall[FeedEvent]:
    """Follow the project's feed behind `after`: what is there, then what comes.

    Goes on through cut connections and restarts of the server, without gap or repeat.
    It ends when you stop reading it. Each event's `position` is where to go on;
    `after="latest"` begins with what comes from now on. One session alone is followed
    by `events.stream`.
    """
    path, filters = path_to("events", "stream"), _filters(types, agent, None)
    if after != LATEST:
        return StreamCall(path, _read_streamed, filled(after=after, **filters))
    # Asked for once: a connection cut before its first event would otherwise begin
    # with what comes after the cut.
    return StreamCall(path, _read_streamed, filled(**filters), _latest())


def _latest() -> Call[str | None]:
    page = list_page(after=LATEST, limit=1)
    return page.then(lambda found: found.cursor)


def _filters(
    types: Iterable[str] | None, agent: str | None, session: str | None
) -> dict[str, Any]:
    return {"types": joined(types), "agent": agent, "session": session}


def _read_streamed(message: Message) -> FeedEvent:
    data = codec.decode(message.data.encode())
    return FeedEvent.from_json(data | {"position": message.id})
