"""Long-term memory in plain words: what agents remember about a user.

memory = LongTermMemory()
memory.remember("u-100", "Prefers invoices as PDF")
memory.recall("u-100", query="how do they want their bills?")
"""

from __future__ import annotations

from agentstate_client.async_client import AsyncClient
from agentstate_client.calls import memory as calls
from agentstate_client.client import Client
from agentstate_client.facts import (
    Fact,
    ForgetReceipt,
    RecalledFact,
    Remembered,
    Revision,
)


class LongTermMemory:
    """Facts about users, kept on the server.

    Without a client it makes one from AGENTSTATE_URL and AGENTSTATE_API_KEY.
    """

    def __init__(self, client: Client | None = None) -> None:
        self.client = client or Client()

    def remember(
        self,
        user_id: str,
        fact: str,
        source_session_id: str | None = None,
        *,
        kind: str | None = None,
        key: str | None = None,
    ) -> Remembered:
        """Remember a fact about the user; saying it again counts it once more."""
        return self.client.send(
            calls.remember(user_id, fact, session=source_session_id, kind=kind, key=key)
        )

    def recall(
        self, user_id: str, limit: int = 20, query: str | None = None
    ) -> list[RecalledFact]:
        """Return what is known about the user that fits `query`, best first."""
        page = self.client.send(calls.recall(user_id, query, limit=limit))
        return page.items

    def correct(self, fact: Fact, text: str, reason: str = "") -> Fact:
        """Give the fact another text, if it is still as `fact` has it."""
        return self.client.send(
            calls.correct(fact.id, text, fact.version, reason=reason)
        )

    def forget(
        self, fact_id: str, *, everywhere: bool = False, reason: str = ""
    ) -> ForgetReceipt:
        """Forget a fact; `everywhere`: also where it was said."""
        return self.client.send(
            calls.forget(fact_id, everywhere=everywhere, reason=reason)
        )

    def forget_user(
        self, user_id: str, *, dry_run: bool = False, reason: str = ""
    ) -> ForgetReceipt:
        """Forget all about a user; a dry run counts and changes nothing."""
        return self.client.send(
            calls.forget_subject(user_id, dry_run=dry_run, reason=reason)
        )

    def history(self, fact_id: str) -> list[Revision]:
        """Return every change of a fact, newest first."""
        return list(self.client.items(calls.history(fact_id)))


class AsyncLongTermMemory:
    """As LongTermMemory, for asyncio."""

    def __init__(self, client: AsyncClient | None = None) -> None:
        self.client = client or AsyncClient()

    async def remember(
        self,
        user_id: str,
        fact: str,
        source_session_id: str | None = None,
        *,
        kind: str | None = None,
        key: str | None = None,
    ) -> Remembered:
        """Remember a fact about the user; saying it again counts it once more."""
        return await self.client.send(
            calls.remember(user_id, fact, session=source_session_id, kind=kind, key=key)
        )

    async def recall(
        self, user_id: str, limit: int = 20, query: str | None = None
    ) -> list[RecalledFact]:
        """Return what is known about the user that fits `query`, best first."""
        page = await self.client.send(calls.recall(user_id, query, limit=limit))
        return page.items

    async def correct(self, fact: Fact, text: str, reason: str = "") -> Fact:
        """Give the fact another text, if it is still as `fact` has it."""
        return await self.client.send(
            calls.correct(fact.id, text, fact.version, reason=reason)
        )

    async def forget(
        self, fact_id: str, *, everywhere: bool = False, reason: str = ""
    ) -> ForgetReceipt:
        """Forget a fact; `everywhere`: also where it was said."""
        return await self.client.send(
            calls.forget(fact_id, everywhere=everywhere, reason=reason)
        )

    async def forget_user(
        self, user_id: str, *, dry_run: bool = False, reason: str = ""
    ) -> ForgetReceipt:
        """Forget all about a user; a dry run counts and changes nothing."""
        return await self.client.send(
            calls.forget_subject(user_id, dry_run=dry_run, reason=reason)
        )

    async def history(self, fact_id: str) -> list[Revision]:
        """Return every change of a fact, newest first."""
        return [item async for item in self.client.items(calls.history(fact_id))]
