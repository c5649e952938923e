"""Handing work to a specialist, in plain words, and doing it as one.

    answer = delegate_to_specialist(run.id, "billing", "Check invoice A-1", specialist)
    answer["summary"], answer["data"]

`specialist` does the work here, or passes the assignment's ticket to another process,
which opens it as `Assignment(ticket, Client(url, ticket["token"]))`.
"""

from __future__ import annotations

import asyncio
import inspect
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from agentstate_client.async_client import AsyncClient
from agentstate_client.call import Call, Flow, ask
from agentstate_client.calls import handoffs as calls
from agentstate_client.client import Client
from agentstate_client.errors import HandoffFailed
from agentstate_client.handed import Handoff, Offered

T = TypeVar("T")

Result = dict[str, Any]  # {"summary", "data"}
Ticket = dict[str, str]  # {"handoff", "token"}: all that the other agent needs
Specialist = Callable[["Assignment"], Any]
AsyncSpecialist = Callable[["AsyncAssignment"], Any]

PAUSE_FIRST, PAUSE_LAST = 0.05, 1.0  # seconds between looks for a result


class _Taking:
    """The taking side, call by call, with the handoff's own key."""

    def __init__(self, ticket: Mapping[str, str]) -> None:
        self.id = ticket["handoff"]
        self.token = ticket["token"]
        self.taken: Handoff | None = None

    @property
    def ticket(self) -> Ticket:
        """What another process needs to take this over; it holds a key."""
        return {"handoff": self.id, "token": self.token}

    def accept(self, by: str | None) -> Flow[Handoff]:
        if self.taken is None:
            name = by
            if name is None:
                name = (yield from ask(self._with_its_key(calls.get(self.id)))).agent
            self.taken = yield from ask(
                self._with_its_key(calls.accept(self.id, name or "specialist"))
            )
        return self.taken

    def prompt_context(self, by: str | None) -> Flow[dict[str, Any]]:
        return (yield from self.accept(by)).prompt_context

    def complete(self, summary: str, data: Any) -> Flow[Handoff]:
        yield from self.accept(None)
        return (
            yield from ask(self._with_its_key(calls.complete(self.id, summary, data)))
        )

    def decline(self, reason: str) -> Call[Handoff]:
        return self._with_its_key(calls.decline(self.id, reason=reason))

    def _with_its_key(self, call: Call[T]) -> Call[T]:
        headers = {**call.headers, "Authorization": f"Bearer {self.token}"}
        return replace(call, headers=headers)


class Assignment:
    """A task that was handed to you: read it, do it, give the result back.

    `client` may be any client of the server: calls carry the ticket's own key. For
    other calls as the agent (events, steps, working memory) use a client with the key.
    """

    def __init__(self, ticket: Mapping[str, str], client: Client) -> None:
        self.client = client
        self._taking = _Taking(ticket)

    @property
    def ticket(self) -> Ticket:
        """What another process needs to take this over; it holds a key."""
        return self._taking.ticket

    def accept(self, by: str | None = None) -> Handoff:
        """Take it under a stable name (the agent's, if you give none)."""
        return self.client.run(self._taking.accept(by))

    def to_prompt_context(self, by: str | None = None) -> dict[str, Any]:
        """Return `{task, relevant_facts, limits}`, all that there is to know."""
        return self.client.run(self._taking.prompt_context(by))

    def complete(self, summary: str, data: Any = None) -> Handoff:
        """Give the result back. The same again is the same answer."""
        return self.client.run(self._taking.complete(summary, data))

    def decline(self, reason: str = "") -> Handoff:
        """Give it back undone."""
        return self.client.send(self._taking.decline(reason))


class AsyncAssignment:
    """As Assignment, for asyncio."""

    def __init__(self, ticket: Mapping[str, str], client: AsyncClient) -> None:
        self.client = client
        self._taking = _Taking(ticket)

    @property
    def ticket(self) -> Ticket:
        """What another process needs to take this over; it holds a key."""
        return self._taking.ticket

    async def accept(self, by: str | None = None) -> Handoff:
        """Take it under a stable name (the agent's, if you give none)."""
        return await self.client.run(self._taking.accept(by))

    async def to_prompt_context(self, by: str | None = None) -> dict[str, Any]:
        """Return `{task, relevant_facts, limits}`, all that there is to know."""
        return await self.client.run(self._taking.prompt_context(by))

    async def complete(self, summary: str, data: Any = None) -> Handoff:
        """Give the result back. The same again is the same answer."""
        return await self.client.run(self._taking.complete(summary, data))

    async def decline(self, reason: str = "") -> Handoff:
        """Give it back undone."""
        return await self.client.send(self._taking.decline(reason))


class _Giving:
    """The giving side, call by call: offers once, whatever is asked first."""

    def __init__(
        self,
        task: str,
        context: Any,
        constraints: Mapping[str, Any] | None,
        parent_run_id: str,
        agent: str,
        on_failure: str | None,
        key: str | None,
    ) -> None:
        carried = context is None or isinstance(context, Mapping)
        self._offer = calls.offer(
            parent_run_id,
            agent,
            task,
            context=context if carried else {"inline": context},
            constraints=constraints,
            on_failure=on_failure,
            idempotency_key=f"handoff:{parent_run_id}:{key or uuid.uuid4()}",
        )
        self.offered: Offered | None = None

    def offer(self) -> Flow[Offered]:
        if self.offered is None:
            self.offered = yield from ask(self._offer)
        return self.offered

    def look(self) -> Flow[Handoff]:
        offered = yield from self.offer()
        return (yield from ask(calls.get(offered.id)))

    def take(self) -> Flow[_Taking]:
        offered = yield from self.offer()
        return _Taking({"handoff": offered.id, "token": offered.token})


class AgentHandoff:
    """A task for another agent, given by a run that waits for the result.

    `context` says what is carried (see `client.handoffs.offer`); anything but a mapping
    is carried as it is. With a `key` of your own the same handoff is found again after
    a crash. Without a client it makes one from AGENTSTATE_URL and AGENTSTATE_API_KEY.
    """

    def __init__(
        self,
        task: str,
        context: Any,
        constraints: Mapping[str, Any] | None,
        parent_run_id: str,
        *,
        agent: str = "specialist",
        on_failure: str | None = None,
        key: str | None = None,
        client: Client | None = None,
    ) -> None:
        self.client = client or Client()
        self._giving = _Giving(
            task, context, constraints, parent_run_id, agent, on_failure, key
        )

    def offer(self) -> Offered:
        """Offer it, once; all other methods do so by themselves."""
        return self.client.run(self._giving.offer())

    def assignment(self) -> Assignment:
        """Return the other agent's side of it."""
        taking = self.client.run(self._giving.take())
        return Assignment(taking.ticket, self.client)

    def to_prompt_context(self) -> dict[str, Any]:
        """Return `{task, relevant_facts, limits}`; it is accepted and fixed by that."""
        return self.assignment().to_prompt_context()

    def look(self) -> Handoff:
        """Return how it stands."""
        return self.client.run(self._giving.look())

    def wait(self, timeout: float | None = None) -> Result:
        """Wait for `{summary, data}`.

        Raises HandoffFailed if nothing came of it, TimeoutError after `timeout` s.
        """
        for pause in _pauses(timeout):
            if (result := result_of(self.look())) is not None:
                return result
            time.sleep(pause)
        raise TimeoutError(f"no result within {timeout} s")


class AsyncAgentHandoff:
    """As AgentHandoff, for asyncio."""

    def __init__(
        self,
        task: str,
        context: Any,
        constraints: Mapping[str, Any] | None,
        parent_run_id: str,
        *,
        agent: str = "specialist",
        on_failure: str | None = None,
        key: str | None = None,
        client: AsyncClient | None = None,
    ) -> None:
        self.client = client or AsyncClient()
        self._giving = _Giving(
            task, context, constraints, parent_run_id, agent, on_failure, key
        )

    async def offer(self) -> Offered:
        """Offer it, once; all other methods do so by themselves."""
        return await self.client.run(self._giving.offer())

    async def assignment(self) -> AsyncAssignment:
        """Return the other agent's side of it."""
        taking = await self.client.run(self._giving.take())
        return AsyncAssignment(taking.ticket, self.client)

    async def to_prompt_context(self) -> dict[str, Any]:
        """Return `{task, relevant_facts, limits}`; it is accepted and fixed by that."""
        return await (await self.assignment()).to_prompt_context()

    async def look(self) -> Handoff:
        """Return how it stands."""
        return await self.client.run(self._giving.look())

    async def wait(self, timeout: float | None = None) -> Result:
        """Wait for `{summary, data}`.

        Raises HandoffFailed if nothing came of it, TimeoutError after `timeout` s.
        """
        for pause in _pauses(timeout):
            if (result := result_of(await self.look())) is not None:
                return result
            await asyncio.sleep(pause)
        raise TimeoutError(f"no result within {timeout} s")


def delegate_to_specialist(
    parent_run_id: str,
    agent: str,
    task: str,
    specialist: Specialist,
    *,
    context: Any = None,
    constraints: Mapping[str, Any] | None = None,
    on_failure: str | None = None,
    key: str | None = None,
    timeout: float | None = None,
    client: Client | None = None,
) -> Result:
    """Hand a task on and return the specialist's `{summary, data}`.

    `specialist` is called with the Assignment. What it returns is the result: a
    summary, `(summary, data)` or `{"summary", "data"}`. None means that another process
    has the ticket: its result is waited for. If it raises, the task is declined. With a
    `key` the same call after a crash goes on with the same handoff. Raises
    HandoffFailed, TimeoutError.
    """
    handoff = AgentHandoff(
        task,
        context,
        constraints,
        parent_run_id,
        agent=agent,
        on_failure=on_failure,
        key=key,
        client=client,
    )
    if (result := result_of(handoff.look())) is not None:
        return result
    assignment = handoff.assignment()
    try:
        returned = specialist(assignment)
    except Exception as error:
        assignment.decline(_why(error))
        raise
    if returned is not None:
        assignment.complete(*_summary_and_data(returned))
    return handoff.wait(timeout)


async def delegate_to_specialist_async(
    parent_run_id: str,
    agent: str,
    task: str,
    specialist: AsyncSpecialist,
    *,
    context: Any = None,
    constraints: Mapping[str, Any] | None = None,
    on_failure: str | None = None,
    key: str | None = None,
    timeout: float | None = None,
    client: AsyncClient | None = None,
) -> Result:
    """As delegate_to_specialist; `specialist` may be a coroutine function."""
    handoff = AsyncAgentHandoff(
        task,
        context,
        constraints,
        parent_run_id,
        agent=agent,
        on_failure=on_failure,
        key=key,
        client=client,
    )
    if (result := result_of(await handoff.look())) is not None:
        return result
    assignment = await handoff.assignment()
    try:
        returned = specialist(assignment)
        if inspect.isawaitable(returned):
            returned = await returned
    except Exception as error:
        await assignment.decline(_why(error))
        raise
    if returned is not None:
        await assignment.complete(*_summary_and_data(returned))
    return await handoff.wait(timeout)


def result_of(handoff: Handoff) -> Result | None:
    """Return the result; None while it is open. Raises HandoffFailed."""
    if handoff.is_open:
        return None
    if handoff.result is None:
        raise HandoffFailed(handoff.status, handoff.reason or "", handoff.id)
    return handoff.result


def _pauses(timeout: float | None) -> Iterator[float]:
    """Yield how long to wait before the next look, until the time is up."""
    until = None if timeout is None else time.monotonic() + timeout
    pause = PAUSE_FIRST
    while until is None or time.monotonic() < until:
        yield pause
        pause = min(pause * 1.5, PAUSE_LAST)


def _summary_and_data(returned: Any) -> tuple[str, Any]:
    if isinstance(returned, str):
        return returned, None
    if isinstance(returned, Mapping):
        return returned["summary"], returned.get("data")
    summary, data = returned
    return summary, data


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:2000]
