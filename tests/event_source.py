"""A client of Server-Sent Events over a real socket, which resumes where it was cut."""

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx

from agentstate import codec


class Message(NamedTuple):
    id: str
    data: Any


class EventSource:
    """Follows `url`; `messages` are those received whole, over all connections.

    A connection that breaks is made anew with Last-Event-ID, as browsers do.
    """

    def __init__(self, url: str, key: str, **params: Any) -> None:
        self.url = url
        self.key = key
        self.params = params
        self.messages: list[Message] = []
        self.connections = 0
        self.refusal: tuple[int, str] | None = None
        self.last_id: str | None = None

    @property
    def ids(self) -> list[str]:
        return [message.id for message in self.messages]

    def read(self, count: int, seconds: float = 120) -> "EventSource":
        """Receive until `count` messages are here, through as many connections."""
        done = threading.Event()

        def run() -> None:
            while len(self.messages) < count and not done.is_set():
                for _ in self.connect():
                    if len(self.messages) >= count:
                        break
                if self.refusal:
                    break

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(seconds)
        done.set()
        assert not thread.is_alive(), f"only {len(self.messages)} of {count} came"
        return self

    def connect(self) -> Iterator[Message]:
        """Yield messages of one connection until it ends, however it ends."""
        self.connections += 1
        headers = {"Authorization": f"Bearer {self.key}"}
        if self.last_id is not None:
            headers["Last-Event-ID"] = self.last_id
        try:
            with httpx.stream(
                "GET", self.url, params=self.params, headers=headers, timeout=60
            ) as answer:
                if answer.status_code != 200:
                    answer.read()
                    self.refusal = (answer.status_code, answer.json()["code"])
                    return
                assert answer.headers["content-type"] == "text/event-stream"
                yield from self._parse(answer.iter_lines())
        except httpx.TransportError:
            return

    def _parse(self, lines: Iterator[str]) -> Iterator[Message]:
        fields: dict[str, str] = {}
        for line in lines:
            if line:
                name, _, value = line.partition(":")
                fields[name] = value.removeprefix(" ")
                continue
            if "data" in fields:
                message = Message(
                    fields["id"], codec.loads(fields["data"], max_depth=1000)
                )
                self.messages.append(message)
                self.last_id = message.id
                yield message
            fields = {}
