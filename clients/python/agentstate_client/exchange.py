"""One call with all its tries: what to send next, and what an outcome means.

Does no I/O: the clients send what `options` says, report how it went, and wait.
"""

from __future__ import annotations

import logging
from typing import Any, Generic, TypeVar

import httpx

from agentstate_client.body import Body
from agentstate_client.call import Call
from agentstate_client.connection import Connection
from agentstate_client.errors import AgentStateError, Unavailable, error_from

T = TypeVar("T")

logger = logging.getLogger("agentstate_client")

CONNECT_TIMEOUT = 5.0  # seconds
UPLOAD_TIMEOUT = 600.0  # seconds, for each part and for the answer


class Exchange(Generic[T]):
    def __init__(self, call: Call[T], connection: Connection) -> None:
        self.call = call
        self.attempts = connection.attempts()
        self._timeout = connection.timeout
        try:
            check_headers(call)
        except ValueError:
            self.done()
            raise

    def options(self, *, is_async: bool = False) -> dict[str, Any]:
        """Return the arguments of httpx's `request` for the next try."""
        # The last try ends with the deadline; httpx takes 0 for no time at all.
        wait = max(0.001, min(self._timeout, self.attempts.remaining))
        content: Any = self.call.content
        if isinstance(content, Body):
            # The server answers when all of it is stored.
            wait = max(wait, UPLOAD_TIMEOUT)
            content = content.parts_async() if is_async else content.parts()
        return {
            "method": self.call.method,
            "url": self.call.path,
            "params": self.call.params,
            "headers": self.call.headers,
            "content": content,
            "timeout": httpx.Timeout(wait, connect=min(CONNECT_TIMEOUT, wait)),
        }

    def done(self) -> None:
        """Close what the call was to send: it was sent, or given up."""
        if isinstance(self.call.content, Body):
            self.call.content.close()

    def delay_after_failure(self, failure: httpx.TransportError) -> float:
        """Return the seconds until the next try; raise Unavailable if none is left."""
        delay = self.attempts.delay_after_failure(failure)
        if delay is None:
            raise self.unreachable(str(failure) or type(failure).__name__) from failure
        return self._told(delay, type(failure).__name__)

    def delay_after_answer(self, response: httpx.Response) -> float | None:
        """Return the seconds until the next try; None if this answer is a success.

        Raises what the answer means if it is a refusal or the tries are used up.
        """
        if response.is_success:
            return None
        delay = self.attempts.delay_after_answer(response)
        if delay is None:
            raise refusal(response, self.call.idempotency_key)
        return self._told(delay, f"HTTP {response.status_code}")

    def _told(self, delay: float, reason: str) -> float:
        logger.info(
            "%s %s: %s, again in %.2f s",
            self.call.method,
            self.call.path,
            reason,
            delay,
        )
        return delay

    def unreachable(self, reason: str) -> Unavailable:
        tries = self.attempts.retries + 1
        return Unavailable(
            f"{self.call.method} {self.call.path} had no answer in "
            f"{tries} {'try' if tries == 1 else 'tries'}: {reason}",
            code="unreachable",
            idempotency_key=self.call.idempotency_key,
        )


def check_headers(call: Call[Any]) -> None:
    """Raise ValueError for what no header can hold: else it looks like a cut line."""
    for name, value in call.headers.items():
        if not (value.isascii() and value.isprintable()):
            raise ValueError(
                f"{value!r} cannot be sent as {name}: printable ASCII characters only"
            )


def refusal(
    response: httpx.Response, idempotency_key: str | None = None
) -> AgentStateError:
    if response.is_redirect:
        return AgentStateError(
            f"{response.request.url} redirects to {response.headers.get('location')}: "
            "give the client that address as its base_url",
            status=response.status_code,
            code="redirected",
            idempotency_key=idempotency_key,
        )
    return error_from(response, idempotency_key)
