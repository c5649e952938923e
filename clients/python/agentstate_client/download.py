"""Downloading to a file, through cut connections, checked at the end.

Nothing here talks to the server: the clients send what `options` says and feed what
they receive.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass
from typing import IO, Any

import httpx

from agentstate_client.call import Call
from agentstate_client.connection import Connection
from agentstate_client.errors import AgentStateError
from agentstate_client.exchange import CONNECT_TIMEOUT, Exchange

PART = ".part"  # of a file that is not whole yet

Target = str | os.PathLike[str] | IO[bytes]


@dataclass(frozen=True)
class Fetch:
    """Bytes to fetch from `path` into `target`, a path or an open file."""

    path: str
    target: Target


class Download:
    """How far one fetch has got, over all its connections."""

    def __init__(self, fetch: Fetch, connection: Connection) -> None:
        self.received = 0
        self._tag = ""
        self._digest = hashlib.sha256()
        self._timeout = connection.timeout
        self._exchange = Exchange(Call("GET", fetch.path, lambda _: None), connection)
        self._path: str | None = None
        if isinstance(fetch.target, (str, os.PathLike)):
            self._path = os.fspath(fetch.target)
            self._file: IO[bytes] = open(self._path + PART, "wb")  # noqa: SIM115
        else:
            self._file = fetch.target
        self._start = self._file.tell() if self._file.seekable() else 0

    def options(self) -> dict[str, Any]:
        """Return the arguments of httpx's `stream` to go on after the last byte."""
        headers = {"Accept-Encoding": "identity"}
        if self.received:
            headers["Range"] = f"bytes={self.received}-"
            headers["If-Range"] = self._tag
        timeout = httpx.Timeout(self._timeout, connect=CONNECT_TIMEOUT)
        return self._exchange.options() | {"headers": headers, "timeout": timeout}

    def delay_after_answer(self, response: httpx.Response) -> float | None:
        """As Exchange's; None also means that bytes follow, to be fed."""
        if response.status_code == 416 and self.received:
            return None  # nothing is left: all of it had come before the cut
        delay = self._exchange.delay_after_answer(response)
        if delay is None:
            self._tag = response.headers.get("etag", "")
            if self.received and response.status_code != 206:
                self._begin_again()
        return delay

    def delay_after_failure(self, failure: httpx.TransportError) -> float:
        return self._exchange.delay_after_failure(failure)

    def feed(self, part: bytes) -> None:
        self._file.write(part)
        self._digest.update(part)
        self.received += len(part)
        # Tries are counted since it last made progress.
        self._exchange.attempts.reset()

    def finish(self) -> int:
        """Return how many bytes came; raises AgentStateError if they are not right."""
        expected = self._tag.strip('"')
        if expected and expected != self._digest.hexdigest():
            raise AgentStateError(
                "the bytes that came are not those that were stored",
                code="sha256_mismatch",
            )
        if self._path is not None:
            self._file.close()
            os.replace(self._path + PART, self._path)
        return self.received

    def close(self) -> None:
        """Leave nothing half done behind."""
        if self._path is not None:
            self._file.close()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path + PART)

    def _begin_again(self) -> None:
        self.received, self._digest = 0, hashlib.sha256()
        self._file.seek(self._start)
        self._file.truncate()
