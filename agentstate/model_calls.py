"""Calls to a model's endpoint that speaks OpenAI's protocol, bounded in time and size.

httpx bounds each read, not their sum: an endpoint that sends a byte now and then would
be waited for without end.
"""

import time
from typing import Any, NamedTuple

import httpx

from agentstate import codec

CONNECT_SECONDS = 5.0


class ModelAnswer(NamedTuple):
    status: int
    body: bytes


class ModelNotReached(Exception):
    """No answer in time, or too long a one. Tells how, and nothing that was sent."""


def post_to_model(
    url: str, body: Any, *, key: str | None, timeout: float, max_bytes: int
) -> ModelAnswer:
    """POST `body` as JSON. `timeout` is of the whole call, in seconds.

    Redirects are not followed: the key is for this host. Raises ModelNotReached.
    """
    until = time.monotonic() + timeout
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    try:
        with httpx.stream(
            "POST",
            url,
            content=codec.dumps(body).encode(),
            headers=headers,
            timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
        ) as answer:
            return ModelAnswer(answer.status_code, _read(answer, until, max_bytes))
    except (httpx.HTTPError, httpx.InvalidURL) as exc:
        raise ModelNotReached(type(exc).__name__) from exc


def _read(answer: httpx.Response, until: float, max_bytes: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    for piece in answer.iter_bytes():
        pieces.append(piece)
        size += len(piece)
        if size > max_bytes:
            raise ModelNotReached("the answer is too long")
        if time.monotonic() > until:
            raise ModelNotReached("the answer took too long")
    return b"".join(pieces)
