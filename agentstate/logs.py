"""Logs: one JSON object a line, with the ids that join it to a request and a trace."""

import json
import logging
import re
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime

TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}\Z")
PLAIN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@dataclass(frozen=True)
class RequestContext:
    """What every line written while a request is served is marked with."""

    request_id: str
    trace_id: str | None = None
    span_id: str | None = None

    @classmethod
    def read(cls, request_id: str, traceparent: str) -> "RequestContext":
        """`traceparent` is the W3C header; one that does not parse is ignored."""
        if found := TRACEPARENT.match(traceparent):
            return cls(request_id, found[1], found[2])
        return cls(request_id)


current: ContextVar[RequestContext | None] = ContextVar("request", default=None)


class JSONFormatter(logging.Formatter):
    """Write a record and what it was given as `extra`; never payloads or keys."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _iso(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if context := current.get():
            line |= {k: v for k, v in vars(context).items() if v is not None}
        line |= {k: v for k, v in vars(record).items() if k not in PLAIN}
        # Django hands the whole request over; its repr adds nothing to the path.
        line.pop("request", None)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def _iso(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="milliseconds")
