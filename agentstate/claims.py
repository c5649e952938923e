"""Claims that wait for work, on the event loop instead of in a thread each.

A claim is handed to its view like any other call. When there was nothing and the worker
is willing to wait, the view says so to us alone, and the request is put by; it holds no
thread and no connection. One watcher in each process asks Postgres, twenty times a
second while anybody waits, for which projects something may be had: one query for all.
Only then are their claims asked again. A worker that has hung up is not claimed for.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from django.db import DatabaseError, connection

from agentstate.bridge import Message, Receive, Scope, Send, WSGIBridge
from runs_app.api.work import WAIT_HEADER, WAITER_ENVIRON
from runs_app.sweeps import projects_with_work

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.05
ASK_AGAIN_SECONDS = 0.2  # for a claim that found nothing for it in what there was
LIMITS_EVERY = 20  # looks
CLAIMS_PER_PROCESS = 5000
BODY_BYTES = 64 * 1024  # a claim is small; a larger body is answered without waiting

_reader = ThreadPoolExecutor(1, thread_name_prefix="claims")


class Watcher:
    """Rings the bells of claims whose project may have something for them."""

    def __init__(self) -> None:
        self.bells: defaultdict[UUID, set[asyncio.Event]] = defaultdict(set)
        self.count = 0
        self.task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def waiting(self, project_id: UUID) -> Iterator[asyncio.Event]:
        bell = asyncio.Event()
        self.bells[project_id].add(bell)
        self.count += 1
        if self.task is None or self.task.done():
            self.task = asyncio.get_running_loop().create_task(self._watch())
        try:
            yield bell
        finally:
            self.count -= 1
            self.bells[project_id].discard(bell)
            if not self.bells[project_id]:
                del self.bells[project_id]

    async def _watch(self) -> None:
        looks = 0
        while self.bells:
            try:
                await self._look(looks % LIMITS_EVERY == 0)
            except DatabaseError:
                # Postgres is away: the claims stay, and go on when it is back.
                logger.warning("the watcher of claims cannot read", exc_info=True)
                await asyncio.sleep(1)
            looks += 1
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, with_limits: bool) -> None:
        projects = list(self.bells)
        found = await asyncio.get_running_loop().run_in_executor(
            _reader, _find, projects, with_limits
        )
        for project_id in found:
            for bell in self.bells.get(project_id, ()):
                bell.set()


def _find(projects: list[UUID], with_limits: bool) -> list[UUID]:
    try:
        return projects_with_work(projects, with_limits=with_limits)
    finally:
        connection.close()  # back to the pool


watcher = Watcher()


class Asked:
    """A request that can be put to the view more than once."""

    def __init__(self, scope: Scope, receive: Receive, http: WSGIBridge) -> None:
        self.scope: Scope = {**scope, WAITER_ENVIRON: True}
        self.receive = receive
        self.http = http
        self.body: list[Message] = []
        self.is_whole = False
        self.answer: list[Message] = []

    async def ask(self) -> None:
        self.answer = []
        replay = iter(list(self.body) if self.is_whole else ())

        async def receive() -> Message:
            for message in replay:
                return message
            message = await self.receive()
            self.body.append(message)
            self.is_whole = not message.get("more_body", False)
            return message

        async def keep(message: Message) -> None:
            self.answer.append(message)

        await self.http(self.scope, receive, keep)

    @property
    def may_wait(self) -> bool:
        size = sum(len(message.get("body", b"")) for message in self.body)
        return self.is_whole and size <= BODY_BYTES

    def wait(self) -> tuple[UUID, float] | None:
        """Whose steps the claim waits for, and how long; None if it is answered."""
        for name, value in self.answer[0]["headers"]:
            if name.lower() == WAIT_HEADER.lower().encode():
                project, _, seconds = value.decode().partition(" ")
                return UUID(project), float(seconds)
        return None

    async def send_answer(self, send: Send) -> None:
        start, *rest = self.answer
        start["headers"] = [
            (name, value)
            for name, value in start["headers"]
            if name.lower() != WAIT_HEADER.lower().encode()
        ]
        for message in (start, *rest):
            await send(message)


async def claim_app(
    scope: Scope, receive: Receive, send: Send, http: WSGIBridge
) -> None:
    """Answer a claim, now or when there is something within its `wait_s`."""
    asked = Asked(scope, receive, http)
    await asked.ask()
    wait = asked.wait()
    if wait and asked.may_wait and watcher.count < CLAIMS_PER_PROCESS:
        gone = asyncio.create_task(_wait_for_disconnect(receive))
        try:
            if not await _wait_for_work(asked, gone, *wait):
                return
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
    await asked.send_answer(send)


async def _wait_for_work(
    asked: Asked, gone: asyncio.Task[None], project_id: UUID, seconds: float
) -> bool:
    """Ask again whenever there may be something; False if the worker hung up."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    with watcher.waiting(project_id) as bell:
        while (left := until - loop.time()) > 0:
            rung = asyncio.create_task(bell.wait())
            await asyncio.wait(
                {rung, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            rung.cancel()
            if gone.done():
                return False
            if not bell.is_set():
                return True
            await asked.ask()
            if asked.wait() is None:
                return True
            await asyncio.sleep(min(ASK_AGAIN_SECONDS, max(until - loop.time(), 0)))
            bell.clear()
    return not gone.done()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
