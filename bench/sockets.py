"""How soon an event is at its followers: many sockets, a steady rate of events."""

import asyncio
import json
import statistics
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime

import httpx
from websockets.asyncio.client import connect


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


async def measure(
    base_url: str, key: str, *, sockets: int, per_second: int, seconds: float
) -> Followed:
    """Spread `sockets` over ten sessions that together get `per_second` events."""
    headers = {"Authorization": f"Bearer {key}"}
    limits = httpx.Limits(max_connections=16, max_keepalive_connections=16)
    async with httpx.AsyncClient(
        base_url=base_url, headers=headers, limits=limits, timeout=60
    ) as http:
        sessions = [
            (await http.post("/api/v1/sessions", json={})).json()["id"]
            for _ in range(10)
        ]
        heard = Followed()
        ready = asyncio.Semaphore(0)
        url = base_url.replace("http", "ws", 1) + "/ws/"
        readers = [
            asyncio.create_task(_follow(url, key, sessions[n % 10], heard, ready))
            for n in range(sockets)
        ]
        for _ in readers:
            await ready.acquire()
        sent = await _append(http, sessions, per_second, seconds)
        await asyncio.sleep(2)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    heard.lost = sum(sent) * (sockets // 10) - len(heard.seconds)
    return heard


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
