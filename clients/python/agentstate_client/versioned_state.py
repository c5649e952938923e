"""Session state that two writers cannot overwrite in each other's back."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from agentstate_client.async_client import AsyncClient
from agentstate_client.client import Client
from agentstate_client.errors import ConcurrentModificationError
from agentstate_client.models import StateVersion

MAX_PAUSE = 0.2  # seconds, between two tries of update_with


class VersionedSessionState:
    """Reads and replaces session state by version.

    Without a client it makes one from AGENTSTATE_URL and AGENTSTATE_API_KEY.
    """

    def __init__(self, client: Client | None = None) -> None:
        self.client = client or Client()

    def get(self, session_id: str) -> StateVersion:
        """Return the state with its version."""
        return self.client.state.get(session_id)

    def update_state(
        self, session_id: str, new_state: Mapping[str, Any], expected_version: int
    ) -> StateVersion:
        """Replace the state, if it still has the version that you read.

        Otherwise raises ConcurrentModificationError with the `current_version` and the
        `changed_paths`; nothing is written.
        """
        return self.client.state.put(session_id, new_state, expected_version)

    def update_with(
        self,
        session_id: str,
        change: Callable[[Any], Mapping[str, Any]],
        *,
        max_tries: int = 50,
    ) -> StateVersion:
        """Replace the state by `change(state)`, reading anew when another was faster.

        `change` may run several times, so it must do nothing but compute. Raises
        ConcurrentModificationError when `max_tries` were not enough.
        """
        for tried in range(max_tries):
            current = self.get(session_id)
            try:
                return self.update_state(
                    session_id, change(current.state), current.version
                )
            except ConcurrentModificationError:
                if tried + 1 == max_tries:
                    raise
            time.sleep(pause(tried))
        raise ValueError("max_tries must be at least 1")


class AsyncVersionedSessionState:
    """As VersionedSessionState, for asyncio."""

    def __init__(self, client: AsyncClient | None = None) -> None:
        self.client = client or AsyncClient()

    async def get(self, session_id: str) -> StateVersion:
        """Return the state with its version."""
        return await self.client.state.get(session_id)

    async def update_state(
        self, session_id: str, new_state: Mapping[str, Any], expected_version: int
    ) -> StateVersion:
        """Replace the state, if it still has the version that you read.

        Otherwise raises ConcurrentModificationError with the `current_version` and the
        `changed_paths`; nothing is written.
        """
        return await self.client.state.put(session_id, new_state, expected_version)

    async def update_with(
        self,
        session_id: str,
        change: Callable[[Any], Mapping[str, Any] | Awaitable[Mapping[str, Any]]],
        *,
        max_tries: int = 50,
    ) -> StateVersion:
        """Replace the state by `change(state)`, reading anew when another was faster.

        As VersionedSessionState.update_with; `change` may be a coroutine function.
        """
        for tried in range(max_tries):
            current = await self.get(session_id)
            changed = change(current.state)
            if isinstance(changed, Awaitable):
                changed = await changed
            try:
                return await self.update_state(session_id, changed, current.version)
            except ConcurrentModificationError:
                if tried + 1 == max_tries:
                    raise
            await asyncio.sleep(pause(tried))
        raise ValueError("max_tries must be at least 1")


def pause(tried: int) -> float:
    """Return the seconds to wait: at random, so that the losers do not meet again."""
    return random.uniform(0, min(MAX_PAUSE, 0.005 * 2.0 ** min(tried, 10)))
