"""The live part: Server-Sent Events that miss nothing and cost appends nothing.

One watcher in each process asks Postgres, twenty times a second while anybody follows,
how far the followed sessions and projects have come: one index look-up each, in one
query for all. A stream whose log has grown reads what is new from the log itself.
Nothing is announced before it is committed, nothing depends on Redis, and a stream that
is cut off resumes by Last-Event-ID.

Whether a stream may begin is decided by its view, like any other call: the request is
first handed to the WSGI application, whose answer is either a refusal or the stream's
`StreamStart`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from django.db import DatabaseError, connection

from access_app.callers import identify
from agentstate import codec, metrics
from agentstate.bridge import Message, Receive, Scope, Send, WSGIBridge, refuse
from agentstate.errors import AppError
from sessions_app import feed
from sessions_app.api.feed import LIVE_ENVIRON, StreamStart, feed_json
from sessions_app.feed import FeedFilter, Position
from sessions_app.log import event_json, read_log
from sessions_app.models import Session

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05
KEEP_ALIVE_SECONDS = 15.0
KEY_CHECK_SECONDS = 0.5
PAGE_EVENTS = 200
STREAMS_PER_PROCESS = 2000
READ_THREADS = 4

# Reads of all streams share these threads, and so at most as many connections.
_readers = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="live")


@dataclass(eq=False)
class Follower:
    """One open stream: what it follows, and a bell for when that may have grown."""

    start: StreamStart
    key_text: str
    bell: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False

    def ring(self) -> None:
        self.bell.set()

    def end(self) -> None:
        self.is_over = True
        self.bell.set()


class Watcher:
    """Rings the followers whose log has grown; runs while there are any."""

    def __init__(self) -> None:
        self.followers: set[Follower] = set()
        self.task: asyncio.Task[None] | None = None
        self.heights: dict[UUID, int] = {}
        self.ends: dict[UUID, Position] = {}

    @contextlib.contextmanager
    def following(self, follower: Follower) -> Iterator[None]:
        self.followers.add(follower)
        metrics.STREAMS.inc()
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._watch())
        try:
            yield
        finally:
            self.followers.discard(follower)
            metrics.STREAMS.dec()

    async def _watch(self) -> None:
        rounds = 0
        every = round(KEY_CHECK_SECONDS / POLL_SECONDS)
        while self.followers:
            try:
                await self._look()
                if rounds % every == 0:
                    await self._check_keys()
            except DatabaseError:
                # Postgres is away: the streams stay open and go on when it is back.
                logger.warning("the live watcher cannot read", exc_info=True)
                await asyncio.sleep(1)
            rounds += 1
            await asyncio.sleep(POLL_SECONDS)
        self.heights.clear()
        self.ends.clear()

    async def _look(self) -> None:
        sessions = {f.start.session_id for f in self.followers if f.start.session_id}
        projects = {
            f.start.project_id for f in self.followers if not f.start.session_id
        }
        if sessions:
            heights = await _read(lambda: _last_seqs(sessions))
            grown = {s for s, h in heights.items() if self.heights.get(s) != h}
            self.heights = heights
            for follower in self.followers:
                if follower.start.session_id in grown:
                    follower.ring()
                elif follower.start.session_id in sessions - heights.keys():
                    follower.end()  # erased
        if projects:
            ends = await _read(lambda: {p: feed.end_of_feed(p) for p in projects})
            moved = {p for p, end in ends.items() if self.ends.get(p) != end}
            self.ends = ends
            for follower in self.followers:
                if not follower.start.session_id and follower.start.project_id in moved:
                    follower.ring()

    async def _check_keys(self) -> None:
        """End the streams of keys that have been revoked or have expired."""
        texts = {follower.key_text for follower in self.followers}
        good = await _read(lambda: {text for text in texts if _is_good(text)})
        for follower in self.followers:
            if follower.key_text not in good:
                follower.end()


watcher = Watcher()


class Batch(NamedTuple):
    """Messages to send, the place behind them, and whether there is more at once."""

    messages: list[bytes]
    place: Any
    has_more: bool


async def sse_app(scope: Scope, receive: Receive, send: Send, http: WSGIBridge) -> None:
    """Answer one request for a stream, until the client goes away."""
    if len(watcher.followers) >= STREAMS_PER_PROCESS:
        await refuse(send, 503, "too_many_streams", "Too many streams. Try again.")
        return
    answer = await _ask_view(scope, receive, http)
    if answer.status != 200:
        for message in answer.messages:
            await send(message)
        return
    start = StreamStart.from_json(codec.loads(answer.body))
    follower = Follower(start, answer.key_text)
    await send(_headers_from(answer))
    with watcher.following(follower):
        stream = asyncio.create_task(_stream(follower, send))
        gone = asyncio.create_task(_wait_for_disconnect(receive))
        done, waiting = await asyncio.wait(
            {stream, gone}, return_when=asyncio.FIRST_COMPLETED
        )
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    for task in done:
        if task is stream and task.exception() is not None:
            logger.warning("stream ended", exc_info=task.exception())
    if stream in done:
        with contextlib.suppress(Exception):
            await send({"type": "http.response.body", "body": b""})


@dataclass
class ViewAnswer:
    """What the WSGI application answered, and the key that the request carried."""

    messages: list[Message]
    key_text: str

    @property
    def status(self) -> int:
        status: int = self.messages[0]["status"]
        return status

    @property
    def body(self) -> bytes:
        return b"".join(m.get("body", b"") for m in self.messages[1:])


async def _ask_view(scope: Scope, receive: Receive, http: WSGIBridge) -> ViewAnswer:
    messages: list[Message] = []

    async def keep(message: Message) -> None:
        messages.append(message)

    await http({**scope, LIVE_ENVIRON: True}, receive, keep)
    return ViewAnswer(messages, _key_text(scope))


def _key_text(scope: Scope) -> str:
    headers: dict[bytes, str] = {
        name.lower(): value.decode("latin-1") for name, value in scope["headers"]
    }
    bearer = headers.get(b"authorization", "")
    return (bearer.partition(" ")[2] or headers.get(b"x-api-key", "")).strip()


def _headers_from(answer: ViewAnswer) -> Message:
    kept = [
        (name, value)
        for name, value in answer.messages[0]["headers"]
        if name not in (b"content-type", b"content-length", b"cache-control")
    ]
    return {
        "type": "http.response.start",
        "status": 200,
        "headers": [
            *kept,
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ],
    }


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _stream(follower: Follower, send: Send) -> None:
    await _send_bytes(send, b"retry: 1000\n\n")
    place: Any = follower.start.place
    while not follower.is_over:
        follower.bell.clear()
        batch = await _read(lambda at=place: _next_batch(follower.start, at))  # type: ignore[misc]
        place = batch.place
        if batch.messages:
            await _send_bytes(send, b"".join(batch.messages))
        if batch.has_more:
            continue
        try:
            await asyncio.wait_for(follower.bell.wait(), KEEP_ALIVE_SECONDS)
        except TimeoutError:
            await _send_bytes(send, b": still here\n\n")


async def _send_bytes(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


def _next_batch(start: StreamStart, place: Any) -> Batch:
    if start.session_id:
        return _next_of_session(start, start.session_id, int(place))
    return _next_of_feed(start, Position(*place))


def _next_of_session(start: StreamStart, session_id: UUID, after_seq: int) -> Batch:
    session = Session.objects.filter(project_id=start.project_id, id=session_id).first()
    if session is None:
        return Batch([], after_seq, False)
    found = read_log(session, after_seq=after_seq, types=start.types, limit=PAGE_EVENTS)
    messages = [_message(str(e.seq), event_json(e)) for e in found.events]
    place = found.events[-1].seq if found.events else after_seq
    return Batch(messages, place, found.has_more)


def _next_of_feed(start: StreamStart, after: Position) -> Batch:
    wanted = FeedFilter(start.types, start.agent, None, start.subject)
    found = feed.read_feed(start.project_id, after, wanted, PAGE_EVENTS)
    messages = [
        _message(feed.encode_position(e.position), feed_json(e)) for e in found.events
    ]
    return Batch(messages, found.position, found.has_more)


def _message(id_: str, data: dict[str, Any]) -> bytes:
    return f"id: {id_}\ndata: {codec.dumps(data)}\n\n".encode()


def _last_seqs(sessions: set[UUID]) -> dict[UUID, int]:
    rows = Session.objects.filter(id__in=sessions).values_list("id", "last_seq")
    return dict(rows)


def _is_good(key_text: str) -> bool:
    try:
        identify(key_text)
    except AppError:
        return False
    return True


async def _read[T](query: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(_readers, _run, query)


def _run[T](query: Callable[[], T]) -> T:
    try:
        return query()
    finally:
        connection.close()  # back to the pool: a stream holds no connection
