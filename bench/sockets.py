"""How soon an event is at its followers: many sockets, a steady rate of events."""

import asyncio
import json
import statistics
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

import httpx
from websockets.asyncio.client import connect

SESSIONS = 10


@dataclass
class Followed:
    """What the sockets heard. `seconds` is from the event's row to the message."""

    seconds: list[float] = field(default_factory=list)
    lost: int = 0

    def percentile(self, part: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(int(len(ordered) * part), len(ordered) - 1)]

    @property
    def middle(self) -> float:
        return statistics.median(self.seconds)


class Crowd:
    """Sockets that follow ten sessions, and a steady rate of events into them."""

    def __init__(self, base_url: str, key: str) -> None:
        self.base_url = base_url
        self.key = key
        self.heard = Followed()
        self.sessions: list[str] = []
        self.sent = [0] * SESSIONS
        self._readers: list[asyncio.Task[None]] = []
        self._http = httpx.AsyncClient(
            base_url=base_url,
            headers={"Authorization": f"Bearer {key}"},
            limits=httpx.Limits(max_connections=16, max_keepalive_connections=16),
            timeout=60,
        )

    async def gather(self, sockets: int) -> None:
        """Make the sessions and connect; returns when all are welcome."""
        for _ in range(SESSIONS):
            made = await self._http.post("/api/v1/sessions", json={})
            self.sessions.append(made.json()["id"])
        ready = asyncio.Semaphore(0)
        url = self.base_url.replace("http", "ws", 1) + "/ws/"
        self._readers = [
            asyncio.create_task(
                _follow(url, self.key, self.sessions[n % SESSIONS], self.heard, ready)
            )
            for n in range(sockets)
        ]
        for _ in self._readers:
            await ready.acquire()

    async def append(self, per_second: int, seconds: float) -> None:
        self.sent = await _append(self._http, self.sessions, per_second, seconds)

    async def disperse(self) -> Followed:
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        await self._http.aclose()
        wanted = sum(self.sent) * (len(self._readers) // SESSIONS)
        self.heard.lost = wanted - len(self.heard.seconds)
        return self.heard


async def measure(
    base_url: str, key: str, *, sockets: int, per_second: int, seconds: float
) -> Followed:
    """Spread `sockets` over ten sessions that together get `per_second` events."""
    crowd = Crowd(base_url, key)
    await crowd.gather(sockets)
    await crowd.append(per_second, seconds)
    await asyncio.sleep(2)
    return await crowd.disperse()


async def _follow(
    url: str, key: str, session: str, heard: Followed, ready: asyncio.Semaphore
) -> None:
    async with connect(url, max_size=None, compression=None) as socket:
        await socket.send(json.dumps({"action": "hello", "key": key}))
        await socket.recv()
        wish = {"action": "subscribe", "id": "s", "session": session, "after_seq": 0}
        await socket.send(json.dumps(wish))
        ready.release()
        async for text in socket:
            now = datetime.now(UTC)
            for event in json.loads(text).get("events", ()):
                written = datetime.fromisoformat(event["created_at"])
                heard.seconds.append((now - written).total_seconds())


async def _append(
    http: httpx.AsyncClient, sessions: list[str], per_second: int, seconds: float
) -> list[int]:
    sent = [0] * len(sessions)
    tasks: set[asyncio.Task[None]] = set()
    start = time.perf_counter()

    async def append(number: int) -> None:
        event = {"type": "message.user", "payload": {"content": "x" * 200}}
        body = {"events": [event]}
        url = f"/api/v1/sessions/{sessions[number]}/events"
        answer = await http.post(url, json=body)
        answer.raise_for_status()
        sent[number] += 1

    for count in range(int(per_second * seconds)):
        late = start + count / per_second - time.perf_counter()
        if late > 0:
            await asyncio.sleep(late)
        task = asyncio.create_task(append(count % len(sessions)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    return sent
