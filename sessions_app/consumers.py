"""The socket: who connects is checked, then follows sessions and the project's feed.

The other side speaks first: `{"action": "hello", "project": SLUG}` with the cookie of a
signed-in person, or `{"action": "hello", "key": KEY}`. Then it subscribes from where it
stands; what it gets carries the seq or cursor to stand at next. See docs/dashboard.md.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from channels.exceptions import StopConsumer
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings
from django.db import DatabaseError
from django.http import Http404

from access_app.callers import Caller, identify
from access_app.credentials import (
    Credential,
    Handshake,
    HandshakeRefused,
    KeyCredential,
    PersonCredential,
    read_handshake,
    visit_by_cookie,
)
from access_app.models import Project
from access_app.roles import Right
from access_app.scopes import SESSIONS_READ
from agentstate import codec, metrics
from agentstate.bridge import Message, Receive, Scope, Send
from agentstate.errors import AppError, FieldError
from sessions_app import feed
from sessions_app.feed import FeedFilter
from sessions_app.live_messages import (
    batch_message,
    change_message,
    html_message,
    replayed_to,
    row_writer,
    write_json,
)
from sessions_app.services import get_session
from sessions_app.tailer import (
    Batch,
    Follower,
    Following,
    Place,
    batches,
    read,
    tailer,
)

logger = logging.getLogger(__name__)

SUBSCRIPTIONS_PER_SOCKET = 20
HELLO_SECONDS = 10
IDLE_SECONDS = 60
SEND_SECONDS = 10  # then a client that does not read is cut off; it resumes by seq
FRAMES_AT_ONCE = 60
FRAMES_PER_SECOND = 20
BAD_FRAMES_MOST = 20
MESSAGE_DEPTH = 8
QUIET_FORMATS = ("html", "notice")  # they tell no more than the listener may see

# Close codes: 4000 and the HTTP status that would say the same.
BAD_REQUEST, UNAUTHENTICATED, TIMEOUT, TOO_MANY = 4400, 4401, 4408, 4429
TRY_AGAIN_LATER = 1013


class BadMessage(AppError):
    """This message is not understood."""

    code, status = "bad_message", 400


class TooManySubscriptions(AppError):
    """A socket follows at most so many things at once. Unsubscribe from one first."""

    code, status = "too_many_subscriptions", 429


class ClientGone(Exception):
    """The other side has left: whoever was about to send to it is done."""


class FrameBudget:
    """How many frames a client may send: so many at once, then so many a second."""

    def __init__(self) -> None:
        self.left = float(FRAMES_AT_ONCE)
        self.at = time.monotonic()

    def take(self) -> bool:
        now = time.monotonic()
        self.left += (now - self.at) * FRAMES_PER_SECOND
        self.left = min(self.left, FRAMES_AT_ONCE) - 1
        self.at = now
        return self.left >= 0


class Listener:
    """Who is at the other end, once that is known, and what they may hear."""

    def __init__(
        self,
        credential: Credential,
        project: Project,
        *,
        caller: Caller | None = None,
        shows_payloads: bool = True,
    ) -> None:
        self.credential = credential
        self.project = project
        self.caller = caller
        self.shows_payloads = shows_payloads

    def following(self, wish: dict[str, Any]) -> Following:
        """What of the project is meant, if it may be heard. Raises AppError."""
        types = _types(wish)
        if wish.get("format") not in QUIET_FORMATS and not self.shows_payloads:
            raise BadMessage("Your role does not see payloads: ask for html.")
        if "session" in wish:
            session_id = self._session_id(wish["session"])
            return Following(
                self.project.id,
                session_id,
                FeedFilter(types=types),
                notices_only=wish.get("format") == "notice",
            )
        if wish.get("feed") is not True:
            raise BadMessage("Say what to follow: a session, or the feed.")
        if wish.get("format") in QUIET_FORMATS:
            return Following(self.project.id, notices_only=True)
        subject = self.caller.subject if self.caller else None
        if self.caller and self.caller.session_id:
            raise BadMessage("This key is bound to a session: follow that.")
        return Following(self.project.id, wanted=FeedFilter(types, None, None, subject))

    def _session_id(self, text: Any) -> UUID:
        try:
            session_id = UUID(text)
        except (ValueError, TypeError, AttributeError):
            raise BadMessage("session: this is no id of a session.") from None
        subject = self.caller.subject if self.caller else None
        session = get_session(self.project.id, session_id, subject=subject)
        if self.caller and not self.caller.may_see(session.id, session.subject):
            raise BadMessage("This key is bound to another session.")
        return session_id


class LiveConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]
    """One socket. Nothing it holds is lost with it: the client knows its places."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.listener: Listener | None = None
        self.greeted = asyncio.Event()
        self.budget = FrameBudget()
        self.bad_frames = 0
        self.closing = False
        self.exits = contextlib.ExitStack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one socket until it ends. That its client leaves is no failure."""
        try:
            with contextlib.suppress(ClientGone):
                await super().__call__(scope, receive, unless_gone(send))
        finally:
            # However it ended, also in the middle of an answer: nothing stays behind.
            for task in self.tasks.values():
                task.cancel()
            self.exits.close()

    async def connect(self) -> None:
        try:
            self.handshake: Handshake = read_handshake(self.scope)
        except HandshakeRefused as exc:
            logger.info("socket refused", extra={"because": str(exc)})
            await self.close()
            return
        if metrics.open_sockets.count >= settings.SOCKETS_PER_PROCESS:
            await self._refuse_as_busy()
            return
        self.exits.enter_context(metrics.open_sockets.counted())
        await self.accept(self.handshake.subprotocol)
        self._begin("alive", self._stay_alive())
        if self.handshake.key_text is not None:
            await self._hello({"key": self.handshake.key_text})

    async def _refuse_as_busy(self) -> None:
        """503 with a hint when to try again, where the server can say so."""
        if "websocket.http.response" not in self.scope.get("extensions", {}):
            await self.close()
            return
        start = {
            "type": "websocket.http.response.start",
            "status": 503,
            "headers": [(b"retry-after", b"5")],
        }
        await self.base_send(start)
        await self.base_send({"type": "websocket.http.response.body", "body": b""})

    async def disconnect(self, code: int) -> None:
        raise StopConsumer

    # --- What comes in

    async def receive(
        self, text_data: str | None = None, bytes_data: bytes | None = None
    ) -> None:
        if self.closing:
            return
        if not self.budget.take():
            await self._cut(TOO_MANY)
            return
        try:
            await self._act(_message(text_data))
        except AppError as exc:
            await self._complain(exc)
        except DatabaseError:
            # The client comes back, later each time, as after any disconnect.
            logger.warning("socket closed: the database is away", exc_info=True)
            await self._cut(TRY_AGAIN_LATER)

    async def _act(self, message: dict[str, Any]) -> None:
        # Named one by one: no message reaches a method by its name.
        actions: dict[Any, Callable[[dict[str, Any]], Awaitable[None]]] = {
            "hello": self._hello,
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
            "ping": self._pong,
        }
        name = message.get("action")
        action = actions.get(name) if isinstance(name, str) else None
        if action is None:
            raise BadMessage(f"There are these actions: {', '.join(actions)}.")
        if self.listener is None and name not in ("hello", "ping"):
            raise BadMessage("Say hello first.")
        await action(message)

    async def _complain(self, exc: AppError, id_: str | None = None) -> None:
        self.bad_frames += 1
        await self._send(
            codec.dumps(
                {"type": "error", "id": id_, "code": exc.code, "detail": exc.detail}
            )
        )
        if self.bad_frames > BAD_FRAMES_MOST:
            await self._cut(BAD_REQUEST)

    async def _pong(self, message: dict[str, Any]) -> None:
        await self._send('{"type":"pong"}')

    async def _hello(self, message: dict[str, Any]) -> None:
        if self.listener is not None:
            raise BadMessage("You have said hello.")
        try:
            self.listener = await read(lambda: listener_of(message, self.handshake))
        except (AppError, Http404):
            await self._send(
                '{"type":"error","code":"unauthenticated",'
                '"detail":"Sign in, or send a valid key."}'
            )
            await self._cut(UNAUTHENTICATED)
            return
        self.greeted.set()
        slug = self.listener.project.slug
        await self._send(codec.dumps({"type": "welcome", "project": slug}))

    async def _subscribe(self, wish: dict[str, Any]) -> None:
        assert self.listener is not None
        id_ = wish.get("id")
        if not isinstance(id_, str) or not 0 < len(id_) <= 64 or id_ == "alive":
            raise BadMessage("id: a name of at most 64 characters for what you follow.")
        if id_ in self.tasks:
            raise BadMessage("This id is in use.")
        if len(self.tasks) > SUBSCRIPTIONS_PER_SOCKET:
            raise TooManySubscriptions(limit=SUBSCRIPTIONS_PER_SOCKET)
        listener = self.listener
        try:
            following = await read(lambda: listener.following(wish))
            place = await read(lambda: start_place(following, wish))
            head = await read(lambda: head_of(following))
        except AppError as exc:
            gone = exc.status == 404
            await self._complain(AppErrorAs("gone", exc.detail) if gone else exc, id_)
            return
        write = self._writer(id_, following, wish.get("format"), head)
        self._begin(id_, self._relay(id_, following, place, write))

    async def _unsubscribe(self, message: dict[str, Any]) -> None:
        task = self.tasks.pop(str(message.get("id")), None)
        if task is None or message.get("id") == "alive":
            raise BadMessage("Nothing is followed by this id.")
        task.cancel()

    # --- What goes out

    def _begin(self, id_: str, work: Any) -> None:
        self.tasks[id_] = asyncio.create_task(self._guarded(work))

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except ClientGone:
            # The socket itself hears of it too, and ends; see __call__.
            self.closing = True
        except Exception:
            logger.exception("a socket's work failed")
            await self._cut(1011)

    async def _stay_alive(self) -> None:
        """Close on those who never say hello; tell the others that we are there."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.greeted.wait(), HELLO_SECONDS)
        if self.listener is None:
            await self._cut(TIMEOUT)
        while not self.closing:
            await self._send('{"type":"still_here"}')
            await asyncio.sleep(settings.SOCKET_PING_SECONDS)

    async def _relay(
        self,
        id_: str,
        following: Following,
        place: Place,
        write: Callable[[Batch], Awaitable[str]],
    ) -> None:
        assert self.listener is not None
        follower = Follower(following, self.listener.credential)
        with tailer.follow(follower) as topic:
            async for batch in batches(topic, follower, place, IDLE_SECONDS):
                if not batch.is_idle and (batch.items or following.notices_only):
                    await self._send(await write(batch))
        self.tasks.pop(id_, None)
        if follower.over == "gone":
            await self._complain(AppErrorAs("gone", "This is no more."), id_)
        elif follower.over == "unauthenticated":
            await self._cut(UNAUTHENTICATED)

    def _writer(
        self, id_: str, following: Following, format_: Any, head: int
    ) -> Callable[[Batch], Awaitable[str]]:
        assert self.listener is not None
        shows = self.listener.shows_payloads
        if format_ == "html":
            row = row_writer(self.listener.project.slug, show_payloads=shows)

        def text(batch: Batch) -> str:
            if following.notices_only:
                return change_message(id_, batch.place)
            if format_ == "html":
                return html_message(id_, batch, row)
            return batch_message(id_, batch, write_json, replayed_to(batch, head))

        async def write(batch: Batch) -> str:
            if not batch.items:
                return text(batch)
            # All who stand at the same place get the very same text.
            old = replayed_to(batch, head)
            key = ("batch", id_, format_, shows, old, batch.items[0].place)
            written = batch.items[-1].written
            if key not in written:
                work = asyncio.to_thread(text, batch)
                written[key] = asyncio.create_task(work)
            # The first who comes writes it; should that socket go, the others wait on.
            message: str = await asyncio.shield(written[key])
            return message

        return write

    async def _send(self, text: str) -> None:
        if self.closing:
            return
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self.send(text_data=text)
        except TimeoutError:
            logger.info("socket cut: its client does not read")
            await self._cut(TRY_AGAIN_LATER)

    async def _cut(self, code: int) -> None:
        if self.closing:
            return
        self.closing = True
        with contextlib.suppress(Exception):
            async with asyncio.timeout(SEND_SECONDS):
                await self.close(code)


def unless_gone(send: Send) -> Send:
    """`send`, raising ClientGone once the client has left.

    The server has an OSError for that; and RuntimeError for what is sent after a close
    that it has made itself, of a client that answers no more, before it has told us.
    """

    async def send_or_leave(message: Message) -> None:
        try:
            await send(message)
        except OSError as exc:
            raise ClientGone from exc
        except RuntimeError as exc:
            if message["type"] not in ("websocket.send", "websocket.close"):
                raise
            raise ClientGone from exc

    return send_or_leave


class AppErrorAs(AppError):
    """An error under another code."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


def _message(text: str | None) -> dict[str, Any]:
    if text is None:
        raise BadMessage("Messages are JSON text, not binary.")
    try:
        message = codec.loads(text, max_depth=MESSAGE_DEPTH)
    except AppError as exc:
        raise BadMessage(exc.detail[:200]) from exc
    if not isinstance(message, dict):
        raise BadMessage("A message is a JSON object.")
    return message


def _types(wish: dict[str, Any]) -> tuple[str, ...]:
    given = wish.get("types", [])
    if (
        not isinstance(given, list)
        or len(given) > 50
        or not all(isinstance(name, str) and "\0" not in name for name in given)
    ):
        raise BadMessage("types: a list of at most 50 names.")
    return tuple(given)


def listener_of(hello: dict[str, Any], handshake: Handshake) -> Listener:
    """Who says hello. Raises Unauthenticated, MissingScope, Http404."""
    key, slug = hello.get("key"), hello.get("project")
    if isinstance(key, str):
        caller = identify(key)
        caller.require_scope(SESSIONS_READ)
        project = Project.objects.get(pk=caller.project_id)
        return Listener(KeyCredential(key), project, caller=caller)
    if not isinstance(slug, str) or "\0" in slug or handshake.session_key is None:
        raise Http404
    visit = visit_by_cookie(handshake.session_key, slug)
    if not visit.may(Right.SEE_SESSIONS):
        raise Http404
    credential = PersonCredential(handshake.session_key, slug, visit.rights)
    return Listener(
        credential, visit.project, shows_payloads=visit.may(Right.SEE_PAYLOADS)
    )


def head_of(following: Following) -> int:
    """The newest seq of the session that is followed: what is told up to it is old."""
    if following.session_id is None:
        return 0
    return get_session(following.project_id, following.session_id).last_seq


def start_place(following: Following, wish: dict[str, Any]) -> Place:
    """Where the client stands: `after_seq` of a session, `after` of the feed."""
    if following.session_id is not None:
        after = wish.get("after_seq", 0)
        if not isinstance(after, int) or not -1 <= after < 2**62:
            raise FieldError("after_seq", "invalid", "must be the seq of an event")
        return after
    after = wish.get("after")
    if after is None:
        return feed.START
    if after == "latest":
        return feed.end_of_feed(following.project_id)
    if not isinstance(after, str):
        raise FieldError("after", "invalid", "must be a cursor")
    return feed.decode_position(after)
