"""Working memory in plain words: set a key for a while, get it back.

memory = WorkingMemory("refund-1042")
memory.set("draft", {"amount": 30}, ttl=600)
memory.get("draft")
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from agentstate_client.async_client import AsyncClient
from agentstate_client.call import Call, Flow, ask, is_id, page_after
from agentstate_client.calls import sessions
from agentstate_client.calls import working_memory as calls
from agentstate_client.calls.working_memory import Kind, Policy
from agentstate_client.client import Client
from agentstate_client.errors import NotFound
from agentstate_client.models import MemoryEntry, Page

T = TypeVar("T")

Owner = tuple[Kind, str]
HOUR = 3600  # seconds


class _Flows:
    """What both do, call by call; remembers whose memory a task's is."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        self._owner: Owner | None = None

    def get(self, key: str, default: Any) -> Flow[Any]:
        try:
            entry = yield from self.use(lambda owner: calls.get(*owner, key))
        except NotFound:
            return default
        return entry.value

    def use(
        self, make: Callable[[Owner], Call[T]], *, creates: bool = False
    ) -> Flow[T]:
        """Send a call about the task's memory: a run's, else a session's.

        A task that is neither is a session of this key: `creates` makes it.
        """
        if self._owner is not None:
            return (yield from ask(make(self._owner)))
        if is_id(self.task_id):
            try:
                return (yield from self._try(("run", self.task_id), make))
            except NotFound as error:
                if error.code != "run_not_found":
                    self._owner = ("run", self.task_id)
                    raise
            return (yield from self._try(("session", self.task_id), make))
        if creates:
            session = yield from ask(sessions.create(key=self.task_id))
            return (yield from self._try(("session", session.id), make))
        page = yield from ask(sessions.list_page(key=self.task_id, limit=1))
        if not page.items:
            raise NotFound(
                f"There is no task {self.task_id!r} yet",
                status=404,
                code="session_not_found",
            )
        return (yield from self._try(("session", page.items[0].id), make))

    def _try(self, owner: Owner, make: Callable[[Owner], Call[T]]) -> Flow[T]:
        result = yield from ask(make(owner))
        self._owner = owner
        return result

    def all(self) -> Flow[dict[str, Any]]:
        try:
            page = yield from self.use(lambda owner: calls.list_page(*owner))
        except NotFound:
            return {}
        assert self._owner is not None
        found: dict[str, Any] = {}
        call: Call[Page[MemoryEntry]] = calls.list_page(*self._owner)
        while True:
            found |= {e.key: e.value for e in page.items if not e.expired}
            following = page_after(call, page)
            if following is None:
                return found
            page = yield from ask(following)

    def delete(self, key: str) -> Flow[bool]:
        try:
            yield from self.use(lambda owner: calls.delete(*owner, key))
        except NotFound:
            return False
        return True


class WorkingMemory:
    """The working memory of one task: a run's id, a session's id or your own key.

    A key that no session has yet makes one, at the first write. Without a client it
    makes one from AGENTSTATE_URL and AGENTSTATE_API_KEY.
    """

    def __init__(self, task_id: str, client: Client | None = None) -> None:
        self.client = client or Client()
        self._flows = _Flows(task_id)

    def set(
        self,
        key: str,
        value: Any,
        ttl: int = HOUR,
        *,
        policy: Policy = "fixed",
        expected_version: int | None = None,
        only_new: bool = False,
    ) -> MemoryEntry:
        """Set a key for `ttl` seconds; with policy "sliding" each read renews them.

        With `expected_version` only if the key still has it (else
        ConcurrentModificationError), with `only_new` only if it is not there.
        """
        return self.client.run(
            self._flows.use(
                lambda owner: calls.put(
                    *owner,
                    key,
                    value,
                    ttl=ttl,
                    policy=policy,
                    expected_version=expected_version,
                    only_new=only_new,
                ),
                creates=True,
            )
        )

    def get(self, key: str, default: Any = None) -> Any:
        """Return a key's value; `default` if it is not there or has expired."""
        return self.client.run(self._flows.get(key, default))

    def entry(self, key: str) -> MemoryEntry:
        """Return a key with its version and life. Raises EntryExpired or NotFound."""
        return self.client.run(self._flows.use(lambda owner: calls.get(*owner, key)))

    def all(self) -> dict[str, Any]:
        """Return all that is there, by key."""
        return self.client.run(self._flows.all())

    def increment(self, key: str, by: int = 1, *, ttl: int = HOUR) -> int:
        """Add to a counter and return it; a new one begins at 0, with this life."""
        entry = self.client.run(
            self._flows.use(
                lambda owner: calls.increment(*owner, key, by, ttl=ttl), creates=True
            )
        )
        return int(entry.value)

    def append(self, key: str, item: Any, *, ttl: int = HOUR) -> int:
        """Add an item to a list and return its length; a new one begins empty."""
        entry = self.client.run(
            self._flows.use(
                lambda owner: calls.append(*owner, key, item, ttl=ttl), creates=True
            )
        )
        return entry.length or 0

    def touch(self, key: str, ttl: int | None = None) -> MemoryEntry:
        """Begin a key's life anew. Raises EntryExpired or NotFound."""
        return self.client.run(
            self._flows.use(lambda owner: calls.touch(*owner, key, ttl=ttl))
        )

    def delete(self, key: str) -> bool:
        """Delete a key; whether it was there."""
        return self.client.run(self._flows.delete(key))


class AsyncWorkingMemory:
    """As WorkingMemory, for asyncio."""

    def __init__(self, task_id: str, client: AsyncClient | None = None) -> None:
        self.client = client or AsyncClient()
        self._flows = _Flows(task_id)

    async def set(
        self,
        key: str,
        value: Any,
        ttl: int = HOUR,
        *,
        policy: Policy = "fixed",
        expected_version: int | None = None,
        only_new: bool = False,
    ) -> MemoryEntry:
        """Set a key for `ttl` seconds; with policy "sliding" each read renews them.

        With `expected_version` only if the key still has it (else
        ConcurrentModificationError), with `only_new` only if it is not there.
        """
        return await self.client.run(
            self._flows.use(
                lambda owner: calls.put(
                    *owner,
                    key,
                    value,
                    ttl=ttl,
                    policy=policy,
                    expected_version=expected_version,
                    only_new=only_new,
                ),
                creates=True,
            )
        )

    async def get(self, key: str, default: Any = None) -> Any:
        """Return a key's value; `default` if it is not there or has expired."""
        return await self.client.run(self._flows.get(key, default))

    async def entry(self, key: str) -> MemoryEntry:
        """Return a key with its version and life. Raises EntryExpired or NotFound."""
        return await self.client.run(
            self._flows.use(lambda owner: calls.get(*owner, key))
        )

    async def all(self) -> dict[str, Any]:
        """Return all that is there, by key."""
        return await self.client.run(self._flows.all())

    async def increment(self, key: str, by: int = 1, *, ttl: int = HOUR) -> int:
        """Add to a counter and return it; a new one begins at 0, with this life."""
        entry = await self.client.run(
            self._flows.use(
                lambda owner: calls.increment(*owner, key, by, ttl=ttl), creates=True
            )
        )
        return int(entry.value)

    async def append(self, key: str, item: Any, *, ttl: int = HOUR) -> int:
        """Add an item to a list and return its length; a new one begins empty."""
        entry = await self.client.run(
            self._flows.use(
                lambda owner: calls.append(*owner, key, item, ttl=ttl), creates=True
            )
        )
        return entry.length or 0

    async def touch(self, key: str, ttl: int | None = None) -> MemoryEntry:
        """Begin a key's life anew. Raises EntryExpired or NotFound."""
        return await self.client.run(
            self._flows.use(lambda owner: calls.touch(*owner, key, ttl=ttl))
        )

    async def delete(self, key: str) -> bool:
        """Delete a key; whether it was there."""
        return await self.client.run(self._flows.delete(key))
