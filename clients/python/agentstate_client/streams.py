"""Following a stream through cut connections, without gap or repeat. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import httpx

from agentstate_client.call import Call, Params
from agentstate_client.connection import Connection
from agentstate_client.exchange import CONNECT_TIMEOUT, Exchange
from agentstate_client.sse import Decoder, Message

T = TypeVar("T")

# The server comments on an idle stream more often than this; silence for longer means
# that the connection is dead even if nobody has said so.
SILENCE = 45.0  # seconds


@dataclass(frozen=True)
class StreamCall(Generic[T]):
    """A stream to follow. `params` or the outcome of `begin` say where it begins."""

    path: str
    read: Callable[[Message], T]
    params: Params
    begin: Call[str | None] | None = None


class Follower(Generic[T]):
    """How far one reader of a stream has got, over all its connections."""

    def __init__(self, stream: StreamCall[T], connection: Connection) -> None:
        self.position: str | None = None  # of the last item handed out
        self._stream = stream
        self._decoder = Decoder()
        self._timeout = connection.timeout
        self._connected_at = 0.0
        self._has_heard = self._has_moved = False  # on the present connection
        self._exchange = Exchange(
            Call("GET", stream.path, lambda response: None, stream.params), connection
        )

    def options(self) -> dict[str, Any]:
        """Return the arguments of httpx's `stream` to go on after the last item."""
        # What the last connection left half read is sent again by the next one.
        self._decoder = Decoder()
        self._has_heard = self._has_moved = False
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
        if self.position is not None:
            headers["Last-Event-ID"] = self.position
        timeout = httpx.Timeout(self._timeout, connect=CONNECT_TIMEOUT, read=SILENCE)
        return self._exchange.options() | {"headers": headers, "timeout": timeout}

    def feed(self, chunk: bytes) -> Iterator[T]:
        """Yield the items that this chunk completes."""
        self._has_heard = True
        for message in self._decoder.feed(chunk):
            if self._is_new(message):
                item = self._stream.read(message)
                self.position = message.id
                self._has_moved = True
                yield item
        self.position = self._decoder.last_id or self.position

    def delay_after_failure(self, failure: httpx.TransportError) -> float:
        """As Exchange's, counting the tries since the stream last made progress."""
        self._count_anew_after_progress()
        return self._exchange.delay_after_failure(failure)

    def delay_after_answer(self, response: httpx.Response) -> float | None:
        self._connected_at = self._exchange.attempts.clock()
        return self._exchange.delay_after_answer(response)

    def delay_after_end(self) -> float:
        """As delay_after_failure, for a stream that the server closed in order."""
        self._count_anew_after_progress()
        delay = self._exchange.attempts.delay()
        if delay is None:
            raise self._exchange.unreachable("the stream ends at once")
        return delay

    def _count_anew_after_progress(self) -> None:
        # At the cut, not when an item came: how long the reader then took with it is
        # no time that the server was away. A connection that said no more than hello
        # before it ended is no progress: it would be made anew without end.
        attempts = self._exchange.attempts
        lasted = attempts.clock() - self._connected_at
        if self._has_moved or (self._has_heard and lasted > attempts.policy.max_delay):
            attempts.reset()

    def _is_new(self, message: Message) -> bool:
        # A message without an id (a hint to the reader) is no item.
        return bool(message.id) and message.id != self.position
