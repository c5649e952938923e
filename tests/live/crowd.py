"""Many sockets at once, each behaving as the dashboard's does: it comes back and goes
on from the event that it has."""

import asyncio
import json
import random
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

FIRST_WAIT, LONGEST_WAIT = 0.5, 20.0  # seconds, as in live.js


@dataclass
class Dashboard:
    """One open page of a session."""

    url: str
    key: str
    session: str
    place: int = 0
    welcomes: int = 0
    refusals: list[int] = field(default_factory=list)  # seconds of Retry-After
    gaps: list[tuple[int, int]] = field(default_factory=list)
    live: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        attempts = 0
        while True:
            try:
                async with connect(
                    f"{self.url}/ws/", max_size=None, compression=None, open_timeout=120
                ) as opened:
                    attempts = 0
                    await self._follow(opened)
            except InvalidStatus as exc:
                hint = exc.response.headers.get("Retry-After", "0")
                self.refusals.append(int(hint))
            except (OSError, ConnectionClosed, TimeoutError, EOFError):
                pass
            self.live.clear()
            longest = min(FIRST_WAIT * 2**attempts, LONGEST_WAIT)
            attempts += 1
            await asyncio.sleep(longest * (0.5 + random.random() / 2))

    async def _follow(self, opened: ClientConnection) -> None:
        await opened.send(json.dumps({"action": "hello", "key": self.key}))
        wish = {"action": "subscribe", "id": "s", "session": self.session}
        await opened.send(json.dumps(wish | {"after_seq": self.place}))
        async for text in opened:
            self._hear(json.loads(text))

    def _hear(self, message: dict[str, Any]) -> None:
        if message["type"] == "welcome":
            self.welcomes += 1
            self.live.set()
        elif message["type"] == "events":
            for event in message["events"]:
                if event["seq"] != self.place + 1:
                    self.gaps.append((self.place, event["seq"]))
                self.place = event["seq"]


@asynccontextmanager
async def crowd(
    url: str, key: str, sessions: Sequence[str], count: int
) -> AsyncIterator[list[Dashboard]]:
    """`count` pages, spread over the sessions; closed together in the end."""
    address = url.replace("http", "ws", 1)
    pages = [Dashboard(address, key, sessions[n % len(sessions)]) for n in range(count)]
    tasks = [asyncio.create_task(page.run()) for page in pages]
    try:
        yield pages
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def all_live(pages: Sequence[Dashboard], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        for page in pages:
            await page.live.wait()


async def all_reach(pages: Sequence[Dashboard], seq: int, seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while any(page.place < seq for page in pages):
            await asyncio.sleep(0.05)


def stalled(url: str, key: str, session: str) -> socket.socket:
    """A client that follows and never reads: its buffers fill and stay full."""
    host, port = url.removeprefix("http://").split(":")
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect((host, int(port)))
    lines = [
        "GET /ws/ HTTP/1.1",
        f"Host: {host}:{port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Protocol: agentstate.v1, agentstate.key.{key}",
    ]
    raw.sendall("\r\n".join([*lines, "", ""]).encode())
    heard = b""
    while b"welcome" not in heard:
        heard += raw.recv(4096)
    wish = {"action": "subscribe", "id": "s", "session": session, "after_seq": 0}
    raw.sendall(_frame(json.dumps(wish).encode()))
    return raw


def _frame(payload: bytes) -> bytes:
    """A masked text frame, its mask being zero."""
    assert len(payload) < 65536
    head = bytes([0x81, 0x80 | 126]) + len(payload).to_bytes(2)
    return head + b"\0\0\0\0" + payload
