"""When a call is tried again, and after how long. Decides; never waits or sends."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

import httpx

from agentstate_client.errors import problem_of

# The request may have been carried out: safe to repeat because a write carries its
# idempotency key. A LocalProtocolError or UnsupportedProtocol would only fail again.
PASSING_FAILURES = (
    httpx.TimeoutException,
    httpx.NetworkError,
    httpx.RemoteProtocolError,
    httpx.ProxyError,
)
PASSING_STATUSES = {429, 502, 503, 504}


@dataclass(frozen=True)
class RetryPolicy:
    """Capped exponential backoff with full jitter, within one deadline a call."""

    max_retries: int = 10
    first_delay: float = 0.1  # seconds
    max_delay: float = 5.0  # seconds
    deadline: float = 60.0  # seconds, over all tries of one call

    def backoff(self, retry: int, chance: float) -> float:
        """Return the seconds before retry 0, 1, 2…; `chance` is from 0 to 1."""
        # Capped before the power is taken: 2.0 ** 1024 overflows.
        return chance * min(self.max_delay, self.first_delay * 2.0 ** min(retry, 64))


class Attempts:
    """The tries of one call so far, and whether there is another."""

    def __init__(
        self,
        policy: RetryPolicy,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.policy = policy
        self.clock = clock
        self._chance = chance
        self.reset()

    def reset(self) -> None:
        """Begin again: a stream that makes progress has all its tries before it."""
        self.retries = 0
        self._ends_at = self.clock() + self.policy.deadline

    @property
    def remaining(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self._ends_at - self.clock())

    def delay_after_failure(self, failure: httpx.TransportError) -> float | None:
        """Return the seconds to wait before the next try; None if there is none."""
        if not isinstance(failure, PASSING_FAILURES):
            return None
        return self.delay()

    def delay_after_answer(self, response: httpx.Response) -> float | None:
        """As delay_after_failure; None also means that the answer is final."""
        if not is_passing(response):
            return None
        return self.delay(at_least=retry_after(response))

    def delay(self, at_least: float = 0.0) -> float | None:
        if self.retries >= self.policy.max_retries:
            return None
        # The jitter comes on top of what the server asked for, or all the callers that
        # it turned away together would come back together.
        delay = at_least + self.policy.backoff(self.retries, self._chance())
        if delay >= self.remaining:
            return None
        self.retries += 1
        return delay


def is_passing(response: httpx.Response) -> bool:
    """Whether the same request may fare better in a moment."""
    if response.status_code == 409:
        return problem_of(response).get("code") == "idempotency_in_progress"
    return response.status_code in PASSING_STATUSES


def retry_after(response: httpx.Response) -> float:
    """Return the seconds that the answer asks to wait; 0 if it does not say."""
    text = response.headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    if until.tzinfo is None:
        until = until.replace(tzinfo=timezone.utc)
    return max(0.0, (until - datetime.now(timezone.utc)).total_seconds())
