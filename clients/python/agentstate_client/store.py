"""A session's log in plain words: append an event, load the session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from agentstate_client.async_client import AsyncClient
from agentstate_client.call import Call, Flow, ask, is_id, page_after
from agentstate_client.calls import events, sessions
from agentstate_client.client import Client
from agentstate_client.errors import NotFound
from agentstate_client.models import AppendedEvent, Event, LoadedSession, Page, Session

T = TypeVar("T")

PAGE = 1000  # events a request
MAX_KNOWN_IDS = 10_000


class SessionStore:
    """Keeps conversations on the server.

    Where a method takes a `session_id`, your own key for the session will do. Without a
    client it makes one from AGENTSTATE_URL and AGENTSTATE_API_KEY.
    """

    def __init__(self, client: Client | None = None) -> None:
        self.client = client or Client()
        self._flows = _Flows()

    def open_session(
        self,
        key: str,
        *,
        agent: str | None = None,
        subject: str | None = None,
        title: str | None = None,
    ) -> Session:
        """Return the session that has this key; create it if there is none."""
        return self.client.sessions.create(
            key=key, agent=agent, subject=subject, title=title
        )

    def append_event(
        self,
        session_id: str,
        event_type: str,
        payload: Mapping[str, Any],
        *,
        event_id: str | None = None,
        expected_seq: int | None = None,
        lock_token: str | None = None,
    ) -> AppendedEvent:
        """Append one event and return its id and number."""
        return self.client.run(
            self._flows.append_event(
                session_id, event_type, payload, event_id, expected_seq, lock_token
            )
        )

    def load_session(self, session_id: str) -> LoadedSession:
        """Return the session with its state and all its events, oldest first."""
        return self.client.run(self._flows.load_session(session_id))


class AsyncSessionStore:
    """As SessionStore, for asyncio."""

    def __init__(self, client: AsyncClient | None = None) -> None:
        self.client = client or AsyncClient()
        self._flows = _Flows()

    async def open_session(
        self,
        key: str,
        *,
        agent: str | None = None,
        subject: str | None = None,
        title: str | None = None,
    ) -> Session:
        """Return the session that has this key; create it if there is none."""
        return await self.client.sessions.create(
            key=key, agent=agent, subject=subject, title=title
        )

    async def append_event(
        self,
        session_id: str,
        event_type: str,
        payload: Mapping[str, Any],
        *,
        event_id: str | None = None,
        expected_seq: int | None = None,
        lock_token: str | None = None,
    ) -> AppendedEvent:
        """Append one event and return its id and number."""
        return await self.client.run(
            self._flows.append_event(
                session_id, event_type, payload, event_id, expected_seq, lock_token
            )
        )

    async def load_session(self, session_id: str) -> LoadedSession:
        """Return the session with its state and all its events, oldest first."""
        return await self.client.run(self._flows.load_session(session_id))


class _Flows:
    """What both stores do, call by call; remembers which id belongs to which key."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def append_event(
        self,
        session_id: str,
        event_type: str,
        payload: Mapping[str, Any],
        event_id: str | None,
        expected_seq: int | None,
        lock_token: str | None,
    ) -> Flow[AppendedEvent]:
        def append(found_id: str) -> Flow[AppendedEvent]:
            result = yield from ask(
                events.append(
                    found_id,
                    event_type,
                    payload,
                    id=event_id,
                    expected_seq=expected_seq,
                    lock_token=lock_token,
                )
            )
            return result.events[0]

        return self._in_session(session_id, append)

    def load_session(self, session_id: str) -> Flow[LoadedSession]:
        return self._in_session(session_id, _load)

    def _in_session(self, name: str, use: Callable[[str], Flow[T]]) -> Flow[T]:
        """Run `use` with the id of the session that has this id or key."""
        known = self._ids.get(name) or (name if is_id(name) else None)
        missing: NotFound | None = None
        if known is not None:
            try:
                return (yield from use(known))
            except NotFound as error:
                # A key may look like an id, and a key's session may have been erased
                # and made anew under another id.
                missing = error
                self._ids.pop(name, None)
        page = yield from ask(sessions.list_page(key=name, limit=1))
        if not page.items:
            raise missing or NotFound(
                f"No session has the key {name!r}: open_session creates it",
                status=404,
                code="session_not_found",
            )
        if len(self._ids) >= MAX_KNOWN_IDS:
            self._ids.clear()
        self._ids[name] = page.items[0].id
        return (yield from use(page.items[0].id))


def _load(session_id: str) -> Flow[LoadedSession]:
    session = yield from ask(sessions.get(session_id))
    # Not beyond what the session's state already contains: together they are what was
    # there at one moment, whatever is appended meanwhile.
    following: Call[Page[Event]] | None = events.list_page(
        session_id, before_seq=session.last_seq + 1, limit=PAGE
    )
    found: list[Event] = []
    while following is not None:
        page = yield from ask(following)
        found += page.items
        following = page_after(following, page)
    return LoadedSession(session, found)
