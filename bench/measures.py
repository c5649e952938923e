"""What is measured, each over HTTP against the running server."""

import itertools
import json
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from bench.client import Asks, Connection, Failed, Measured, load, request
from bench.stack import Stack

SESSIONS = 64
TEXT = "x" * 135  # with its frame a payload of about 150 bytes
LONG_LOG = 100_000
CONVERSATION = 3_000
BATCH = 1_000


def event(number: int) -> dict[str, Any]:
    return {"type": "message.user", "payload": {"content": f"{number:06}{TEXT[6:]}"}}


def turn(number: int) -> list[dict[str, Any]]:
    """Three items, as an agent's turn has: a question, a call, its result."""
    call_id = f"call_{number}"
    return [
        event(number),
        {
            "type": "tool.call",
            "payload": {
                "tool_call_id": call_id,
                "name": "find",
                "arguments": TEXT[:90],
            },
        },
        {
            "type": "tool.result",
            "payload": {"tool_call_id": call_id, "content": TEXT[:110]},
        },
    ]


def body_of(events: list[dict[str, Any]]) -> bytes:
    return json.dumps({"events": events}).encode()


def append_request(
    key: str, session: str, events: list[dict[str, Any]], headers: str = ""
) -> bytes:
    path = f"/api/v1/sessions/{session}/events"
    return request("POST", path, key, body_of(events), headers)


@dataclass(frozen=True)
class Appends:
    """Appends without end: the n-th of `connections` has every n-th session."""

    key: str
    sessions: list[str]
    connections: int
    events: int
    turns: bool
    with_key: bool

    def __call__(self, number: int) -> Asks:
        for count in itertools.count(number, self.connections):
            session = self.sessions[count % len(self.sessions)]
            if self.turns:
                items = turn(count)
            else:
                items = [event(count + i) for i in range(self.events)]
            header = f"Idempotency-Key: {uuid4()}\r\n" if self.with_key else ""
            yield append_request(self.key, session, items, header), 1


class Bench:
    """Measures of one running server. Times are seconds, rates appends a second."""

    def __init__(self, stack: Stack, seconds: float) -> None:
        self.stack = stack
        self.seconds = seconds
        self.connection = Connection(stack.port)
        self.sessions = [self.new_session() for _ in range(SESSIONS)]

    def ask(self, method: str, path: str, body: bytes = b"") -> Any:
        asked = request(method, f"/api/v1{path}", self.stack.key, body)
        return json.loads(self.connection.ask(asked))

    def new_session(self) -> str:
        made = self.ask("POST", "/sessions", b'{"agent": "bench"}')
        return str(made["id"])

    def appends(
        self,
        connections: int,
        *,
        events: int = 1,
        turns: bool = False,
        with_key: bool = False,
        one_session: bool = False,
    ) -> Measured:
        """Append over `connections`, to 64 sessions by turns or all to one."""
        sessions = [self.new_session()] if one_session else self.sessions
        requests = Appends(
            self.stack.key, sessions, connections, events, turns, with_key
        )
        return load(self.stack.port, connections, self.seconds, requests)

    def append(self, session: str, events: list[dict[str, Any]]) -> float:
        begun = time.perf_counter()
        self.connection.ask(append_request(self.stack.key, session, events))
        return time.perf_counter() - begun

    def long_session(self) -> str:
        """A session that holds LONG_LOG events."""
        session = self.new_session()
        for start in range(0, LONG_LOG, BATCH):
            self.append(session, [event(start + i) for i in range(BATCH)])
        return session

    def flatness(self, long: str) -> dict[str, dict[str, Measured]]:
        """The same appends to a long session and to an empty one, by turns."""
        empty = self.new_session()
        whole = json.dumps([event(i)["payload"] for i in range(CONVERSATION)])
        as_one = [{"type": "message.user", "payload": {"content": whole}}]
        found = {
            name: {"empty": Measured(), "long": Measured()}
            for name in (
                "one event",
                "3,000 events, singly",
                "3,000 events, in 3 calls",
            )
        }

        def add(name: str, events: list[dict[str, Any]]) -> None:
            for which, session in (("empty", empty), ("long", long)):
                found[name][which].times.append(self.append(session, events))

        for number in range(CONVERSATION):
            add("3,000 events, singly", [event(number)])
        # Fresh, so that it is empty for the others too, but for what they add.
        empty = self.new_session()
        for _ in range(20):
            add("one event", as_one)
        for _ in range(5):
            for start in range(0, CONVERSATION, BATCH):
                events = [event(start + i) for i in range(BATCH)]
                add("3,000 events, in 3 calls", events)
        return found

    def reads(self, path: str, count: int) -> Measured:
        asked = request("GET", f"/api/v1{path}", self.stack.key)
        measured = Measured()
        for _ in range(count):
            begun = time.perf_counter()
            self.connection.ask(asked)
            measured.times.append(time.perf_counter() - begun)
        return measured

    def load_log(self, session: str, events: int, count: int) -> Measured:
        """Read the first `events` of a log, by pages of a thousand."""
        measured = Measured()
        for _ in range(count):
            begun = time.perf_counter()
            for after in range(0, events, 1000):
                path = f"/api/v1/sessions/{session}/events?limit=1000&after_seq={after}"
                self.connection.ask(request("GET", path, self.stack.key))
            measured.times.append(time.perf_counter() - begun)
        return measured

    def stream_delay(self, count: int) -> Measured:
        """From sending an append until a stream has told of it."""
        session = self.new_session()
        stream = _Stream(self.stack, session)
        measured = Measured()
        for number in range(1, count + 1):
            begun = time.perf_counter()
            self.append(session, [event(number)])
            measured.times.append(stream.arrival_of(number) - begun)
        stream.close()
        return measured


class _Stream:
    """Reads a session's stream in a thread, and notes when each event came."""

    def __init__(self, stack: Stack, session: str) -> None:
        self.connection = Connection(stack.port)
        path = f"/api/v1/sessions/{session}/events/stream"
        self.connection.send(request("GET", path, stack.key))
        self.arrived: dict[int, float] = {}
        self.changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def arrival_of(self, seq: int) -> float:
        with self.changed:
            if not self.changed.wait_for(lambda: seq in self.arrived, timeout=30):
                raise Failed(f"the stream did not tell of event {seq}")
            return self.arrived[seq]

    def close(self) -> None:
        # The reader waits in it: closed alone, it would stay open as long.
        self.connection.socket.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def _read(self) -> None:
        rest = b""
        while True:
            try:
                part = self.connection.socket.recv(65536)
            except OSError:
                return
            now = time.perf_counter()
            if not part:
                return
            *whole, rest = (rest + part).split(b"\n")
            with self.changed:
                for line in whole:
                    if line.startswith(b"id:"):
                        self.arrived.setdefault(int(line[3:]), now)
                self.changed.notify_all()
