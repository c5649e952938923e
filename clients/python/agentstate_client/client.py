"""The blocking client: sends calls, waits between tries, follows streams."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import httpx

from agentstate_client.binding import (
    Resource,
    blocking,
    blocking_fetch,
    blocking_pages,
    blocking_stream,
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


class Sessions(Resource):
    create = blocking(sessions.create)
    get = blocking(sessions.get)
    list = blocking(sessions.list_page)
    iterate = blocking_pages(sessions.list_page)
    update = blocking(sessions.update)
    close = blocking(sessions.close)
    reopen = blocking(sessions.reopen)
    erase = blocking(sessions.erase)
    fork = blocking(sessions.fork)
    lock = blocking(sessions.lock)
    unlock = blocking(sessions.unlock)
    replay = blocking(sessions.replay)


class Events(Resource):
    append = blocking(events.append)
    append_many = blocking(events.append_many)
    list = blocking(events.list_page)
    iterate = blocking_pages(events.list_page)
    stream = blocking_stream(events.stream)


class State(Resource):
    get = blocking(state.get)
    put = blocking(state.put)
    merge = blocking(state.merge)
    patch = blocking(state.patch)


class Feed(Resource):
    list = blocking(feed.list_page)
    iterate = blocking_pages(feed.list_page)
    stream = blocking_stream(feed.stream)


class Runs(Resource):
    create = blocking(runs.create)
    get = blocking(runs.get)
    list = blocking(runs.list_page)
    iterate = blocking_pages(runs.list_page)
    steps = blocking_pages(runs.list_steps)
    append_steps = blocking(runs.append_steps)
    replace_steps = blocking(runs.replace_steps)
    cancel = blocking(runs.cancel)
    pause = blocking(runs.pause)
    resume = blocking(runs.resume)
    retry = blocking(runs.retry)
    again = blocking(runs.again)
    signal = blocking(runs.signal)
    why = blocking(runs.why)


class Steps(Resource):
    claim = blocking(steps.claim)
    heartbeat = blocking(steps.heartbeat)
    complete = blocking(steps.complete)
    fail = blocking(steps.fail)
    release = blocking(steps.release)
    get = blocking(steps.get)
    approve = blocking(steps.approve)
    reject = blocking(steps.reject)
    skip = blocking(steps.skip)
    cancel = blocking(steps.cancel)
    retry = blocking(steps.retry)
    resolve = blocking(steps.resolve)
    inbox = blocking(steps.inbox)


class Effects(Resource):
    begin = blocking(effects.begin)
    complete = blocking(effects.complete)
    get = blocking(effects.get)


class Handoffs(Resource):
    offer = blocking(handoffs.offer)
    get = blocking(handoffs.get)
    list = blocking(handoffs.list_page)
    iterate = blocking_pages(handoffs.list_page)
    accept = blocking(handoffs.accept)
    decline = blocking(handoffs.decline)
    complete = blocking(handoffs.complete)
    suggest = blocking(handoffs.suggest)
    tree = blocking(handoffs.tree)


class Memory(Resource):
    remember = blocking(memory.remember)
    recall = blocking(memory.recall)
    get = blocking(memory.get)
    list = blocking(memory.list_page)
    iterate = blocking_pages(memory.list_page)
    correct = blocking(memory.correct)
    approve = blocking(memory.approve)
    reject = blocking(memory.reject)
    forget = blocking(memory.forget)
    forget_subject = blocking(memory.forget_subject)
    history = blocking_pages(memory.history)


class WorkingMemoryCalls(Resource):
    get = blocking(working_memory.get)
    list = blocking(working_memory.list_page)
    iterate = blocking_pages(working_memory.list_page)
    put = blocking(working_memory.put)
    increment = blocking(working_memory.increment)
    append = blocking(working_memory.append)
    touch = blocking(working_memory.touch)
    delete = blocking(working_memory.delete)


class Artifacts(Resource):
    upload = blocking(artifacts.upload)
    download = blocking_fetch(artifacts.download)
    read = blocking(artifacts.read)
    get = blocking(artifacts.get)
    list = blocking(artifacts.list_page)
    iterate = blocking_pages(artifacts.list_page)
    link = blocking(artifacts.link)
    delete = blocking(artifacts.delete)


class Client:
    """A connection to one AgentState server with one API key.

    `base_url` and `api_key` default to AGENTSTATE_URL and AGENTSTATE_API_KEY.
    `timeout` is what one try may take, `deadline` what a call may take with all its
    retries, both in seconds. May be shared by threads. Close it, or use it in `with`.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 30.0,
        max_retries: int = 10,
        deadline: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.connection = Connection.of(
            base_url, api_key, timeout, max_retries, deadline
        )
        self._http = httpx.Client(**self.connection.http_options(), transport=transport)
        self.sessions = Sessions(self)
        self.events = Events(self)
        self.state = State(self)
        self.feed = Feed(self)
        self.runs = Runs(self)
        self.steps = Steps(self)
        self.effects = Effects(self)
        self.handoffs = Handoffs(self)
        self.memory = Memory(self)
        self.working_memory = WorkingMemoryCalls(self)
        self.artifacts = Artifacts(self)

    def whoami(self) -> Caller:
        """Return what the server knows about the key in use."""
        return self.send(keys.whoami())

    def send(self, call: Call[T], *, deadline: float | None = None) -> T:
        """Send one call, again if need be, and return what its answer means.

        With `deadline` in at most so many seconds, if that is less than the client's.
        """
        exchange = Exchange(call, self.connection.within(deadline))
        try:
            return self._exchange(exchange)
        finally:
            exchange.done()

    def _exchange(self, exchange: Exchange[T]) -> T:
        while True:
            try:
                response = self._http.request(**exchange.options())
            except httpx.TransportError as failure:
                delay = exchange.delay_after_failure(failure)
            else:
                retry_in = exchange.delay_after_answer(response)
                if retry_in is None:
                    return exchange.call.read(response)
                delay = retry_in
            time.sleep(delay)

    def run(self, flow: Flow[T]) -> T:
        """Send the calls of a flow one after the other and return its outcome."""
        go_on: Callable[[], Call[Any]] = partial(next, flow)
        while True:
            try:
                call = go_on()
            except StopIteration as end:
                outcome: T = end.value
                return outcome
            try:
                go_on = partial(flow.send, self.send(call))
            except AgentStateError as error:
                go_on = partial(flow.throw, error)

    def items(self, call: Call[Page[T]]) -> Generator[T, None, None]:
        """Iterate over a list's items, asking for each page when it is reached."""
        following: Call[Page[T]] | None = call
        while following is not None:
            page = self.send(following)
            yield from page
            following = page_after(following, page)

    def follow(self, stream: StreamCall[T]) -> Generator[T, None, None]:
        """Iterate over a stream without end, through cuts and restarts."""
        follower = Follower(stream, self.connection)
        if stream.begin is not None:
            follower.position = self.send(stream.begin)
        while True:
            try:
                with self._http.stream(**follower.options()) as response:
                    if not response.is_success:
                        response.read()
                    delay = follower.delay_after_answer(response)
                    if delay is None:
                        for chunk in response.iter_bytes():
                            yield from follower.feed(chunk)
                        delay = follower.delay_after_end()
            except httpx.TransportError as failure:
                delay = follower.delay_after_failure(failure)
            time.sleep(delay)

    def fetch(self, fetch: Fetch) -> int:
        """Fetch bytes into a file, through cuts and restarts; return how many."""
        download = Download(fetch, self.connection)
        try:
            while True:
                try:
                    with self._http.stream(**download.options()) as response:
                        if not response.is_success:
                            response.read()
                        delay = download.delay_after_answer(response)
                        if delay is None:
                            for part in response.iter_bytes():
                                download.feed(part)
                            return download.finish()
                except httpx.TransportError as failure:
                    delay = download.delay_after_failure(failure)
                time.sleep(delay)
        finally:
            download.close()

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
