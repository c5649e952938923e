"""Server-Sent Events that miss nothing and cost appends nothing.

Whether a stream may begin is decided by its view, like any other call: the request is
first handed to the WSGI application, whose answer is either a refusal or the stream's
`StreamStart`. What it then sends comes from the tailer (sessions_app.tailer), which the
sockets of the dashboard share.
"""

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from access_app.credentials import KeyCredential
from agentstate import codec, metrics
from agentstate.bridge import Message, Receive, Scope, Send, WSGIBridge, refuse
from sessions_app import feed
from sessions_app.api.feed import LIVE_ENVIRON, StreamStart, feed_json
from sessions_app.feed import FeedEvent, FeedFilter, Position
from sessions_app.log import event_json
from sessions_app.tailer import (
    Batch,
    Follower,
    Following,
    Item,
    Place,
    Topic,
    batches,
    tailer,
)

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 15.0
SEND_SECONDS = 30.0  # a client that takes nothing for so long is cut off, and resumes
STREAMS_PER_PROCESS = 2000


async def sse_app(scope: Scope, receive: Receive, send: Send, http: WSGIBridge) -> None:
    """Answer one request for a stream, until the client goes away."""
    if metrics.open_streams.count >= STREAMS_PER_PROCESS:
        await refuse(send, 503, "too_many_streams", "Too many streams. Try again.")
        return
    answer = await _ask_view(scope, receive, http)
    if answer.status != 200:
        for message in answer.messages:
            await send(message)
        return
    start = StreamStart.from_json(codec.loads(answer.body))
    follower = Follower(_following(start), KeyCredential(answer.key_text))
    place = start.place if start.session_id else Position(*start.place)
    await send(_headers_from(answer))
    with tailer.follow(follower) as topic, metrics.open_streams.counted():
        stream = asyncio.create_task(_stream(topic, follower, place, send))
        gone = asyncio.create_task(_wait_for_disconnect(receive))
        done, waiting = await asyncio.wait(
            {stream, gone}, return_when=asyncio.FIRST_COMPLETED
        )
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    if stream not in done:
        return
    failure = stream.exception()
    if isinstance(failure, TimeoutError):
        return  # an ending would wait for the client just as long
    if failure is not None:
        logger.warning("stream ended", exc_info=failure)
    with contextlib.suppress(Exception):
        async with asyncio.timeout(SEND_SECONDS):
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


async def _stream(topic: Topic, follower: Follower, place: Place, send: Send) -> None:
    await _send_bytes(send, b"retry: 1000\n\n")
    async for batch in batches(topic, follower, place, KEEP_ALIVE_SECONDS):
        if batch.items:
            await _send_bytes(send, _messages(batch))
        elif batch.is_idle:
            await _send_bytes(send, b": still here\n\n")


async def _send_bytes(send: Send, data: bytes) -> None:
    """Send, or raise TimeoutError if the client takes nothing for SEND_SECONDS."""
    async with asyncio.timeout(SEND_SECONDS):
        await send({"type": "http.response.body", "body": data, "more_body": True})


def _following(start: StreamStart) -> Following:
    if start.session_id:
        wanted = FeedFilter(types=start.types)
    else:
        wanted = FeedFilter(start.types, start.agent, None, start.subject)
    return Following(start.project_id, start.session_id, wanted)


def _messages(batch: Batch) -> bytes:
    return b"".join(_message(item) for item in batch.items)


def _message(item: Item) -> bytes:
    """One event as a stream's message; written once for all streams."""
    if "sse" not in item.written:
        if isinstance(item.place, Position):
            id_ = feed.encode_position(item.place)
            found = FeedEvent(item.session_id, item.agent, item.place, item.event)
            data = feed_json(found)
        else:
            id_, data = str(item.place), event_json(item.event)
        item.written["sse"] = f"id: {id_}\ndata: {codec.dumps(data)}\n\n".encode()
    message: bytes = item.written["sse"]
    return message
