"""JSON and times as they travel: what is sent is what comes back, or an error."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any


def encode(value: Any) -> bytes:
    """Return compact UTF-8 JSON. Raises ValueError for NaN and the infinities."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        # A lone surrogate has no UTF-8. Escaped it reaches the server, which refuses
        # it and names the path; an encoding error here could not.
        return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()


def decode(body: bytes) -> Any:
    return json.loads(body)


def to_wire(moment: datetime | str) -> str:
    """Return UTC ISO 8601. A naive datetime is refused: its zone would be a guess."""
    if isinstance(moment, str):
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone")
    return moment.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def from_wire(text: str | None) -> datetime | None:
    # Before Python 3.11 fromisoformat does not know the Z.
    return None if text is None else datetime.fromisoformat(text.replace("Z", "+00:00"))
