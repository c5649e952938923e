"""The client for asyncio: as `Client`, call for call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import httpx

from agentstate_client.binding import (
    AsyncResource,
    async_pages,
    async_stream,
    awaitable,
    awaitable_fetch,
)
from agentstate_client.call import Call, Flow, page_after
from agentstate_client.calls import (
    artifacts,
    effects,
    events,
    feed,
    handoffs,
    keys,
    memory,
    runs,
    sessions,
    state,
    steps,
    working_memory,
)
from agentstate_client.connection import Connection
from agentstate_client.download import Download, Fetch
from agentstate_client.errors import AgentStateError
from agentstate_client.exchange import Exchange
from agentstate_client.models import Caller, Page
from agentstate_client.streams import Follower, StreamCall

T = TypeVar("T")


class AsyncSessions(AsyncResource):
    create = awaitable(sessions.create)
    get = awaitable(sessions.get)
    list = awaitable(sessions.list_page)
    iterate = async_pages(sessions.list_page)
    update = awaitable(sessions.update)
    close = awaitable(sessions.close)
    reopen = awaitable(sessions.reopen)
    erase = awaitable(sessions.erase)
    fork = awaitable(sessions.fork)
    lock = awaitable(sessions.lock)
    unlock = awaitable(sessions.unlock)
    replay = awaitable(sessions.replay)


class AsyncEvents(AsyncResource):
    append = awaitable(events.append)
    append_many = awaitable(events.append_many)
    list = awaitable(events.list_page)
    iterate = async_pages(events.list_page)
    stream = async_stream(events.stream)


class AsyncState(AsyncResource):
    get = awaitable(state.get)
    put = awaitable(state.put)
    merge = awaitable(state.merge)
    patch = awaitable(state.patch)


class AsyncFeed(AsyncResource):
    list = awaitable(feed.list_page)
    iterate = async_pages(feed.list_page)
    stream = async_stream(feed.stream)


class AsyncRuns(AsyncResource):
    create = awaitable(runs.create)
    get = awaitable(runs.get)
    list = awaitable(runs.list_page)
    iterate = async_pages(runs.list_page)
    steps = async_pages(runs.list_steps)
    append_steps = awaitable(runs.append_steps)
    replace_steps = awaitable(runs.replace_steps)
    cancel = awaitable(runs.cancel)
    pause = awaitable(runs.pause)
    resume = awaitable(runs.resume)
    retry = awaitable(runs.retry)
    again = awaitable(runs.again)
    signal = awaitable(runs.signal)
    why = awaitable(runs.why)


class AsyncSteps(AsyncResource):
    claim = awaitable(steps.claim)
    heartbeat = awaitable(steps.heartbeat)
    complete = awaitable(steps.complete)
    fail = awaitable(steps.fail)
    release = awaitable(steps.release)
    get = awaitable(steps.get)
    approve = awaitable(steps.approve)
    reject = awaitable(steps.reject)
    skip = awaitable(steps.skip)
    cancel = awaitable(steps.cancel)
    retry = awaitable(steps.retry)
    resolve = awaitable(steps.resolve)
    inbox = awaitable(steps.inbox)


class AsyncEffects(AsyncResource):
    begin = awaitable(effects.begin)
    complete = awaitable(effects.complete)
    get = awaitable(effects.get)


class AsyncHandoffs(AsyncResource):
    offer = awaitable(handoffs.offer)
    get = awaitable(handoffs.get)
    list = awaitable(handoffs.list_page)
    iterate = async_pages(handoffs.list_page)
    accept = awaitable(handoffs.accept)
    decline = awaitable(handoffs.decline)
    complete = awaitable(handoffs.complete)
    suggest = awaitable(handoffs.suggest)
    tree = awaitable(handoffs.tree)


class AsyncMemory(AsyncResource):
    remember = awaitable(memory.remember)
    recall = awaitable(memory.recall)
    get = awaitable(memory.get)
    list = awaitable(memory.list_page)
    iterate = async_pages(memory.list_page)
    correct = awaitable(memory.correct)
    approve = awaitable(memory.approve)
    reject = awaitable(memory.reject)
    forget = awaitable(memory.forget)
    forget_subject = awaitable(memory.forget_subject)
    history = async_pages(memory.history)


class AsyncWorkingMemoryCalls(AsyncResource):
    get = awaitable(working_memory.get)
    list = awaitable(working_memory.list_page)
    iterate = async_pages(working_memory.list_page)
    put = awaitable(working_memory.put)
    increment = awaitable(working_memory.increment)
    append = awaitable(working_memory.append)
    touch = awaitable(working_memory.touch)
    delete = awaitable(working_memory.delete)


class AsyncArtifacts(AsyncResource):
    upload = awaitable(artifacts.upload)
    download = awaitable_fetch(artifacts.download)
    read = awaitable(artifacts.read)
    get = awaitable(artifacts.get)
    list = awaitable(artifacts.list_page)
    iterate = async_pages(artifacts.list_page)
    link = awaitable(artifacts.link)
    delete = awaitable(artifacts.delete)


class AsyncClient:
    """A connection to one AgentState server with one API key, for asyncio.

    Takes what `Client` takes. Close it with `aclose`, or use it in `async with`.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 30.0,
        max_retries: int = 10,
        deadline: float = 60.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.connection = Connection.of(
            base_url, api_key, timeout, max_retries, deadline
        )
        self._http = httpx.AsyncClient(
            **self.connection.http_options(), transport=transport
        )
        self.sessions = AsyncSessions(self)
        self.events = AsyncEvents(self)
        self.state = AsyncState(self)
        self.feed = AsyncFeed(self)
        self.runs = AsyncRuns(self)
        self.steps = AsyncSteps(self)
        self.effects = AsyncEffects(self)
        self.handoffs = AsyncHandoffs(self)
        self.memory = AsyncMemory(self)
        self.working_memory = AsyncWorkingMemoryCalls(self)
        self.artifacts = AsyncArtifacts(self)

    async def whoami(self) -> Caller:
        """Return what the server knows about the key in use."""
        return await self.send(keys.whoami())

    async def send(self, call: Call[T], *, deadline: float | None = None) -> T:
        """Send one call, again if need be, and return what its answer means.

        With `deadline` in at most so many seconds, if that is less than the client's.
        """
        exchange = Exchange(call, self.connection.within(deadline))
        try:
            return await self._exchange(exchange)
        finally:
            exchange.done()

    async def _exchange(self, exchange: Exchange[T]) -> T:
        while True:
            try:
                response = await self._http.request(**exchange.options(is_async=True))
            except httpx.TransportError as failure:
                delay = exchange.delay_after_failure(failure)
            else:
                retry_in = exchange.delay_after_answer(response)
                if retry_in is None:
                    return exchange.call.read(response)
                delay = retry_in
            await asyncio.sleep(delay)

    async def run(self, flow: Flow[T]) -> T:
        """Send the calls of a flow one after the other and return its outcome."""
        go_on: Callable[[], Call[Any]] = partial(next, flow)
        while True:
            try:
                call = go_on()
            except StopIteration as end:
                outcome: T = end.value
                return outcome
            try:
                go_on = partial(flow.send, await self.send(call))
            except AgentStateError as error:
                go_on = partial(flow.throw, error)

    async def items(self, call: Call[Page[T]]) -> AsyncGenerator[T, None]:
        """Iterate over a list's items, asking for each page when it is reached."""
        following: Call[Page[T]] | None = call
        while following is not None:
            page = await self.send(following)
            for item in page:
                yield item
            following = page_after(following, page)

    async def follow(self, stream: StreamCall[T]) -> AsyncGenerator[T, None]:
        """Iterate over a stream without end, through cuts and restarts."""
        follower = Follower(stream, self.connection)
        if stream.begin is not None:
            follower.position = await self.send(stream.begin)
        while True:
            try:
                async with self._http.stream(**follower.options()) as response:
                    if not response.is_success:
                        await response.aread()
                    delay = follower.delay_after_answer(response)
                    if delay is None:
                        async for chunk in response.aiter_bytes():
                            for item in follower.feed(chunk):
                                yield item
                        delay = follower.delay_after_end()
            except httpx.TransportError as failure:
                delay = follower.delay_after_failure(failure)
            await asyncio.sleep(delay)

    async def fetch(self, fetch: Fetch) -> int:
        """Fetch bytes into a file, through cuts and restarts; return how many."""
        download = Download(fetch, self.connection)
        try:
            while True:
                try:
                    async with self._http.stream(**download.options()) as response:
                        if not response.is_success:
                            await response.aread()
                        delay = download.delay_after_answer(response)
                        if delay is None:
                            async for part in response.aiter_bytes():
                                await asyncio.to_thread(download.feed, part)
                            return download.finish()
                except httpx.TransportError as failure:
                    delay = download.delay_after_failure(failure)
                await asyncio.sleep(delay)
        finally:
            download.close()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
