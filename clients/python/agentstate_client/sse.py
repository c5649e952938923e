"""Server-sent events: bytes in, messages out, wherever the chunks are cut."""

from __future__ import annotations

import re
from dataclasses import dataclass

LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True)
class Message:
    event: str
    data: str
    id: str


class Decoder:
    """Decodes one connection's stream. A message cut off by its end is dropped."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []  # of a line whose end has not come yet
        self._event = ""
        self._data: list[str] = []
        self._id = ""
        self.last_id = ""  # also of a message without data, which only moves it

    def feed(self, chunk: bytes) -> list[Message]:
        self._parts.append(chunk)
        # A long line comes in many chunks: joined once, not once a chunk.
        if not LINE_END.search(chunk) and not self._ends_in_cr():
            return []
        lines = LINE_END.split(b"".join(self._parts))
        rest = lines.pop()
        if chunk.endswith(b"\r"):
            # Perhaps half of a CRLF: taken as an end of line of its own, its other
            # half would read as an empty line and end the message too early.
            rest = lines.pop() + b"\r"
        self._parts = [rest]
        messages = (self._take(line.decode("utf-8", "replace")) for line in lines)
        return [message for message in messages if message is not None]

    def _ends_in_cr(self) -> bool:
        return len(self._parts) > 1 and self._parts[-2].endswith(b"\r")

    def _take(self, line: str) -> Message | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value
        return None

    def _dispatch(self) -> Message | None:
        event, data = self._event or "message", self._data
        self.last_id = self._id
        self._event, self._data = "", []
        return Message(event, "\n".join(data), self._id) if data else None
