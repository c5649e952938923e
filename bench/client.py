"""A client that costs little: raw sockets, one loop a process, bytes made beforehand.

With http.client or httpx the client would take as much of two cores as the server, and
the figures would be the client's.
"""

import selectors
import socket
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from typing import Any, Protocol

MAX_PROCESSES = 2
RECEIVE_BYTES = 1 << 20
IDLE_SECONDS = 2  # servers close a connection that has been idle for some seconds


class Failed(RuntimeError):
    """An answer that was no success: a figure of errors would be worth nothing."""


def request(
    method: str, path: str, key: str, body: bytes = b"", headers: str = ""
) -> bytes:
    """Return the bytes of a request; `headers` are whole lines."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n{headers}\r\n"
    )
    return head.encode() + body


class Connection:
    """One kept-alive connection. `ask` waits; `send` and `receive` do not."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.buffer = bytearray()
        self.connect()

    def connect(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self.port), 60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sent_at = time.perf_counter()

    def ask(self, data: bytes) -> bytes:
        """Send a request and return the body of its answer."""
        if time.perf_counter() - self.sent_at > IDLE_SECONDS:
            self.socket.close()
            self.connect()
        self.send(data)
        while (body := self.receive()) is None:
            pass
        return body

    def send(self, data: bytes) -> None:
        self.sent_at = time.perf_counter()
        self.socket.sendall(data)

    def receive(self) -> bytes | None:
        """Read what is there; the body once the answer is whole."""
        part = self.socket.recv(RECEIVE_BYTES)
        if not part:
            raise Failed("the server closed the connection")
        self.buffer += part
        head_end = self.buffer.find(b"\r\n\r\n")
        if head_end < 0:
            return None
        head = bytes(self.buffer[:head_end]).lower()
        mark = head.find(b"content-length:")
        if mark < 0:
            raise Failed(f"an answer without a length: {head[:300]!r}")
        length = int(head[mark + 15 :].split(b"\r\n", 1)[0])
        end = head_end + 4 + length
        if len(self.buffer) < end:
            return None
        body = bytes(self.buffer[head_end + 4 : end])
        del self.buffer[:end]
        if head[9:10] != b"2":
            raise Failed(f"{head[9:12].decode()}: {body[:500]!r}")
        return body

    def close(self) -> None:
        self.socket.close()


@dataclass
class Measured:
    """Seconds that each request took, and how long they all took together."""

    times: list[float] = field(default_factory=list)
    elapsed: float = 0.0

    @property
    def rate(self) -> float:
        return len(self.times) / self.elapsed

    def quantile(self, part: float) -> float:
        """In milliseconds."""
        ordered = sorted(self.times)
        at = min(len(ordered) - 1, int(part * len(ordered)))
        return ordered[at] * 1000


# A request, and how many of what is measured are done with its answer. One that does
# none begins what a later one ends.
type Ask = tuple[bytes, int]
# Gives requests and is sent their answers.
type Asks = Generator[Ask, bytes]


class Requests(Protocol):
    """What each connection sends; it must be picklable, for it goes to a process."""

    def __call__(self, number: int) -> Asks: ...


def load(port: int, connections: int, seconds: float, requests: Requests) -> Measured:
    """Send `requests(n)` over connection n, each after the answer to the one before."""
    processes = min(connections, MAX_PROCESSES)
    context = get_context("spawn")
    pipes, children = [], []
    for number in range(processes):
        own = range(number, connections, processes)
        ours, theirs = context.Pipe()
        child = context.Process(
            target=_serve_load, args=(theirs, port, own, seconds, requests)
        )
        child.start()
        theirs.close()
        pipes.append(ours)
        children.append(child)
    for pipe in pipes:
        _received(pipe)  # it is ready
    for pipe in pipes:
        pipe.send("go")
    results = [_received(pipe) for pipe in pipes]
    for child in children:
        child.join()
    whole = Measured(elapsed=max(each.elapsed for each in results))
    for each in results:
        whole.times += each.times
    return whole


def _received(pipe: Any) -> Measured:
    try:
        result = pipe.recv()
    except EOFError:
        raise Failed("a client process ended without a word") from None
    if isinstance(result, Exception):
        raise result
    assert isinstance(result, Measured)
    return result


def _serve_load(
    pipe: "Pipe[Any, Any]",
    port: int,
    numbers: range,
    seconds: float,
    requests: Requests,
) -> None:
    try:
        sources = {Connection(port): requests(number) for number in numbers}
        pipe.send(Measured())
        pipe.recv()
        pipe.send(_loop(sources, seconds))
    except Exception as exc:
        pipe.send(exc)


@dataclass
class Asking:
    """One connection at work."""

    connection: Connection
    asks: Asks
    since: float = 0.0
    does: int = 0

    def ask(self, answer: bytes | None = None) -> None:
        if self.does or answer is None:
            self.since = time.perf_counter()
        data, self.does = next(self.asks) if answer is None else self.asks.send(answer)
        self.connection.send(data)


def _loop(sources: dict[Connection, Asks], seconds: float) -> Measured:
    measured = Measured()
    selector = selectors.DefaultSelector()
    everyone = [Asking(connection, asks) for connection, asks in sources.items()]
    for each in everyone:
        selector.register(each.connection.socket, selectors.EVENT_READ, each)
    begun = time.perf_counter()
    for each in everyone:
        each.ask()
    waiting = len(everyone)
    while waiting:
        for key, _ in selector.select(30):
            each = key.data
            answer = each.connection.receive()
            if answer is None:
                continue
            now = time.perf_counter()
            measured.times += [now - each.since] * each.does
            if now - begun < seconds:
                each.ask(answer)
            else:
                waiting -= 1
    measured.elapsed = time.perf_counter() - begun
    for connection in sources:
        connection.close()
    return measured
