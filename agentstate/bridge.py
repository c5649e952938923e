"""HTTP from an ASGI server to the WSGI application, in a fixed pool of threads.

a2wsgi does the same, but hands the application a body as it arrives and takes a client
that hung up for the end of it: a request cut short would reach a view as a complete
one. It also crosses between the loop and the thread for each part of a body. Here the
body is read whole, checked and counted first, so a thread is never held by a slow
client, and a usual request crosses twice.
"""

import asyncio
import contextlib
import io
import logging
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote_to_bytes

from agentstate import codec
from agentstate.api.errors import CONTENT_TYPE, problem

type Message = MutableMapping[str, Any]
type Scope = MutableMapping[str, Any]
type Receive = Callable[[], Awaitable[Message]]
type Send = Callable[[Message], Awaitable[None]]
type Environ = dict[str, Any]
type WSGIApp = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]

logger = logging.getLogger(__name__)

SPOOL_BYTES = 1024 * 1024  # larger bodies wait on disk
PART_BYTES = 256 * 1024  # answers are sent in parts of about this size
WAITING_PER_THREAD = 64
DRAIN_SECONDS = 2
READERS = 16
NO_ROOM = "The server has no room for this body just now. Try again later."


class BodyCutShort(Exception):
    """The client went away, or sent fewer bytes than it announced."""


class BodyTooLarge(Exception):
    """More bytes than the server takes."""


class WSGIBridge:
    """An ASGI application that answers by calling `app` in one of `threads` threads.

    A body over `max_body_bytes` is refused with 413 before it is read. When each thread
    has `WAITING_PER_THREAD` requests waiting, the next get 503: they would time out.
    """

    def __init__(
        self,
        app: WSGIApp,
        *,
        threads: int,
        max_body_bytes: int,
        spool_dir: Path | None = None,
    ) -> None:
        self.app = app
        self.max_body_bytes = max_body_bytes
        self.spool_dir = None if spool_dir is None else str(spool_dir)
        self.most_at_once = threads * (WAITING_PER_THREAD + 1)
        self.at_once = 0
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix="http")
        # Answers that are only bytes wait for their readers here, a part at a time.
        self.readers = ThreadPoolExecutor(READERS, thread_name_prefix="content")

    async def __call__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        max_body_bytes: int | None = None,
    ) -> None:
        """Answer one request; `max_body_bytes` is for one that may bring more."""
        if self.at_once >= self.most_at_once:
            await refuse(send, 503, "overloaded", "The server is busy. Try again.")
            return
        self.at_once += 1
        try:
            limit = max_body_bytes or self.max_body_bytes
            await self._serve(scope, receive, send, limit)
        finally:
            self.at_once -= 1

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, limit: int
    ) -> None:
        announced = content_length(scope)
        with self._body_of(announced) as body:
            try:
                await self._read(announced, receive, body, limit)
            except BodyCutShort:
                detail = "The body ended before its announced length."
                return await refuse(send, 400, "incomplete_body", detail)
            except BodyTooLarge:
                return await refuse_body(receive, send, *too_large(limit), limit)
            except OSError:
                logger.exception("a body could not be kept")
                answer = problem_messages(503, "storage_full", NO_ROOM)
                return await refuse_body(receive, send, *answer, limit)
            loop = asyncio.get_running_loop()
            call = Call(self.app, build_environ(scope, body), loop, send)
            answered = await loop.run_in_executor(self.pool, call.run)
        if isinstance(answered, Detached):
            await self._send_detached(answered, send)
        elif answered is not None:
            start, content = answered
            await send(start)
            await send({"type": "http.response.body", "body": content})

    def _body_of(self, announced: int | None) -> IO[bytes]:
        """Where a body waits: in memory if it is known to be small."""
        if announced is not None and announced <= SPOOL_BYTES:
            return io.BytesIO()
        return tempfile.SpooledTemporaryFile(SPOOL_BYTES, dir=self.spool_dir)

    async def _send_detached(self, answer: "Detached", send: Send) -> None:
        """Send a long answer as fast as its client takes it, without a thread.

        A stream that fails is cut: the client sees less than was announced.
        """
        loop = asyncio.get_running_loop()
        parts = answer.parts
        try:
            await send(answer.start)
            while part := await loop.run_in_executor(self.readers, next, parts, b""):
                message = {"type": "http.response.body", "body": part}
                await send(message | {"more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await asyncio.shield(loop.run_in_executor(self.readers, _close, parts))

    async def _read(
        self, announced: int | None, receive: Receive, body: IO[bytes], limit: int
    ) -> None:
        """Fill `body` and leave it at its beginning. BodyCutShort, BodyTooLarge."""
        if announced is not None and announced > limit:
            raise BodyTooLarge
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise BodyCutShort
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > limit:
                raise BodyTooLarge
            body.write(part)
            more = message.get("more_body", False)
        if announced is not None and size != announced:
            raise BodyCutShort
        body.seek(0)


async def refuse_body(
    receive: Receive, send: Send, start: Message, content: Message, limit: int
) -> None:
    """Answer at once, then close, but not under a client that is still sending.

    Closing while bytes arrive resets the connection, and the client may lose the
    answer. What comes is dropped, for a moment and a bounded amount.
    """
    start["headers"] = [*start["headers"], (b"connection", b"close")]
    await send(start)
    await send({**content, "more_body": True})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            await _drain(receive, limit)
    await send({"type": "http.response.body", "body": b""})


async def _drain(receive: Receive, limit: int) -> None:
    dropped = 0
    while dropped <= limit:
        message = await receive()
        dropped += len(message.get("body", b""))
        if not message.get("more_body", False):
            return


def too_large(limit: int) -> tuple[Message, Message]:
    """The messages that refuse a body of more than `limit` bytes."""
    detail = f"The body is larger than {limit} bytes."
    return problem_messages(413, "body_too_large", detail, limit_bytes=limit)


@dataclass(frozen=True)
class Detached:
    """An answer whose parts need nothing of the request any more."""

    start: Message
    parts: Iterator[bytes]


class Call:
    """One request in its thread."""

    def __init__(
        self,
        app: WSGIApp,
        environ: Environ,
        loop: asyncio.AbstractEventLoop,
        send: Send,
    ) -> None:
        self.app = app
        self.environ = environ
        self.loop = loop
        self.send = send
        self.start: Message = {}

    def run(self) -> tuple[Message, bytes] | Detached | None:
        """Return the answer for the loop to send; None if it was sent in parts.

        `close` runs before the answer is sent: it returns the database connection.
        """
        result = self.app(self.environ, self._start_response)
        try:
            if detach := getattr(result, "detach", None):
                return Detached(self.start, detach())
            parts = merged(result, PART_BYTES)
            first = next(parts, b"")
            second = next(parts, None)
            if second is not None:
                self._send_in_parts(first, second, parts)
                return None
        finally:
            close = getattr(result, "close", None)
            if close is not None:
                close()
        return self.start, b"" if self.environ["REQUEST_METHOD"] == "HEAD" else first

    def _start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None
    ) -> None:
        self.start = {
            "type": "http.response.start",
            "status": int(status[:3]),
            "headers": [
                (name.lower().encode("latin-1"), value.encode("latin-1"))
                for name, value in headers
            ],
        }

    def _send_in_parts(
        self, first: bytes, second: bytes, rest: Iterator[bytes]
    ) -> None:
        self._wait_for(self.start)
        for part in (first, second):
            self._send_part(part)
        for part in rest:
            self._send_part(part)
        self._wait_for({"type": "http.response.body", "body": b""})

    def _send_part(self, part: bytes) -> None:
        self._wait_for({"type": "http.response.body", "body": part, "more_body": True})

    def _wait_for(self, message: Message) -> None:
        async def send() -> None:
            await self.send(message)

        asyncio.run_coroutine_threadsafe(send(), self.loop).result()


def merged(parts: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Join small parts into parts of at least `size` bytes, but for the last."""
    waiting: list[bytes] = []
    length = 0
    for part in parts:
        waiting.append(part)
        length += len(part)
        if length >= size:
            yield b"".join(waiting)
            waiting, length = [], 0
    if waiting:
        yield b"".join(waiting)


def build_environ(scope: Scope, body: IO[bytes]) -> Environ:
    """PEP 3333's environment for one ASGI request with its whole body."""
    path = scope.get("raw_path") or scope["path"].encode()
    server = scope.get("server") or ("127.0.0.1", 80)
    client = scope.get("client") or ("", 0)
    environ: Environ = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(path.partition(b"?")[0]).decode("latin-1"),
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "SERVER_NAME": server[0],
        "SERVER_PORT": str(server[1]),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "REMOTE_ADDR": client[0],
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope.get("scheme", "http"),
        "wsgi.input": body,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    add_headers(environ, scope["headers"])
    environ["CONTENT_LENGTH"] = str(_size(body))
    # What other parts of the server say to a view; no client can write into a scope.
    environ |= {k: v for k, v in scope.items() if k.startswith("agentstate.")}
    return environ


def add_headers(environ: Environ, headers: Iterable[tuple[bytes, bytes]]) -> None:
    for raw_name, raw_value in headers:
        key = _environ_name(raw_name)
        if key is None:
            continue
        value = raw_value.decode("latin-1")
        if key in environ:
            separator = "; " if key == "HTTP_COOKIE" else ","
            value = f"{environ[key]}{separator}{value}"
        environ[key] = value
    environ.pop("HTTP_CONTENT_LENGTH", None)


@lru_cache(512)
def _environ_name(raw_name: bytes) -> str | None:
    # An underscore would pass for the hyphen of a header that a proxy vouches for.
    if b"_" in raw_name or raw_name == b"transfer-encoding":
        return None
    name = raw_name.decode("latin-1").upper().replace("-", "_")
    return "CONTENT_TYPE" if name == "CONTENT_TYPE" else f"HTTP_{name}"


def _size(body: IO[bytes]) -> int:
    size = body.seek(0, 2)
    body.seek(0)
    return size


def _close(parts: Iterator[bytes]) -> None:
    close = getattr(parts, "close", None)
    if close is not None:
        close()


def content_length(scope: Scope) -> int | None:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return None


async def refuse(send: Send, status: int, code: str, detail: str) -> None:
    start, content = problem_messages(status, code, detail)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        start["headers"].append((b"retry-after", b"1"))
    await send(start)
    await send(content)


def problem_messages(
    status: int, code: str, detail: str, **extra: Any
) -> tuple[Message, Message]:
    """The two ASGI messages of a problem+json answer."""
    body = codec.dumps(problem(status, code, detail, **extra)).encode()
    start = {
        "type": "http.response.start",
        "status": status,
        "headers": [
            (b"content-type", CONTENT_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
        ],
    }
    return start, {"type": "http.response.body", "body": body}
