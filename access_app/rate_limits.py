"""How many calls a key may make in a minute.

A window begins with a key's first call and lasts a minute of Redis' clock; one Lua
script counts in one round trip, so that parallel calls are all counted. While Redis is
down or slow each process counts for itself, with the same limit: N processes then let
through at most N times as much. A high limit is counted in steps: a process takes up to
a hundred calls at once, never more than a thousandth of the limit, and hands them out
without asking Redis again. See docs/access.md.
"""

import logging
import math
import threading
import time
from dataclasses import dataclass
from functools import cache
from uuid import UUID

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.commands.core import Script
from redis.retry import Retry

from access_app.callers import Caller
from access_app.errors import RateLimited

logger = logging.getLogger(__name__)

WINDOW = 60.0  # seconds
PAUSE = 1.0  # seconds without Redis after it has failed
LOCAL_ENTRIES = 10_000
STEP_SHARE = 1000  # a step is at most this part of the limit
STEP_MAX = 100  # calls

# Returns the calls in this window, these included, and its milliseconds to go.
COUNT = """
local used = redis.call('INCRBY', KEYS[1], ARGV[2])
local left = redis.call('PTTL', KEYS[1])
if left < 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  left = tonumber(ARGV[1])
end
return {used, left}
"""


@dataclass(frozen=True, slots=True)
class Usage:
    """A key's window after a call."""

    limit: int
    used: int
    seconds_left: float

    @property
    def headers(self) -> dict[str, str]:
        return {
            "RateLimit-Limit": str(self.limit),
            "RateLimit-Remaining": str(max(0, self.limit - self.used)),
            "RateLimit-Reset": str(self.reset_seconds),
        }

    @property
    def reset_seconds(self) -> int:
        return max(1, math.ceil(self.seconds_left))

    def check(self) -> None:
        if self.used > self.limit:
            raise RateLimited(self.limit, self.reset_seconds)


def count_call(caller: Caller) -> Usage | None:
    """Count one call of this key; None if it has no limit. Raises nothing."""
    limit = caller.rate_limit_per_minute
    if limit == 0:
        return None
    local = local_windows.count(caller.key_id)
    used, seconds_left = _count_in_redis(caller) or local
    return Usage(limit, used, seconds_left)


def _count_in_redis(caller: Caller) -> tuple[int, float] | None:
    limit = caller.rate_limit_per_minute
    step = max(1, min(limit // STEP_SHARE, STEP_MAX))
    if step > 1 and (taken := reserved.take(caller.key_id)):
        return taken
    if not breaker.lets_through():
        return None
    key = f"agentstate:rate:{caller.project_id}:{caller.key_id}"
    try:
        used, left = connect()(keys=[key], args=[int(WINDOW * 1000), step])
    except redis.RedisError:
        breaker.open()
        return None
    breaker.close()
    first = used - step + 1
    if step > 1:
        reserved.put(caller.key_id, first, min(used, limit) - first, left / 1000)
    return first, left / 1000


class Reserved:
    """Calls that Redis has counted already, for this process to hand out."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[UUID, tuple[int, int, float]] = {}  # used, left, until

    def take(self, key_id: UUID) -> tuple[int, float] | None:
        """Return the calls used and the window's seconds to go; None without any."""
        now = time.monotonic()
        with self._lock:
            used, left, until = self._calls.get(key_id, (0, 0, 0.0))
            if left < 1 or now >= until:
                return None
            self._calls[key_id] = (used + 1, left - 1, until)
        return used + 1, until - now

    def put(self, key_id: UUID, used: int, left: int, seconds: float) -> None:
        with self._lock:
            if len(self._calls) >= LOCAL_ENTRIES:
                self._calls.clear()  # counted and not used: a step each is lost
            self._calls[key_id] = (used, left, time.monotonic() + seconds)


class Breaker:
    """Keeps calls away from a Redis that has just failed.

    After a failure nobody asks for PAUSE seconds, then one call tries while the others
    still stay away; so at most one request a second waits for a Redis that hangs.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._away_until: float | None = None  # time.monotonic()

    def lets_through(self) -> bool:
        if self._away_until is None:
            return True
        with self._lock:
            now = time.monotonic()
            if self._away_until is not None and now < self._away_until:
                return False
            self._away_until = now + PAUSE
            return True

    def open(self) -> None:
        with self._lock:
            if self._away_until is None:
                logger.warning("rate limits: Redis is away, each process counts alone")
            self._away_until = time.monotonic() + PAUSE

    def close(self) -> None:
        if self._away_until is None:
            return
        with self._lock:
            self._away_until = None
        logger.info("rate limits: Redis is back")


class LocalWindows:
    """This process's own count, always kept, so that it is right when it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._windows: dict[UUID, tuple[float, int]] = {}  # monotonic start, calls

    def count(self, key_id: UUID) -> tuple[int, float]:
        """Count a call and return the calls in the window and its seconds to go."""
        now = time.monotonic()
        with self._lock:
            began, used = self._windows.get(key_id, (now, 0))
            if now - began >= WINDOW:
                began, used = now, 0
            if len(self._windows) >= LOCAL_ENTRIES:
                self._drop_old(now)
            self._windows[key_id] = (began, used + 1)
        return used + 1, WINDOW - (now - began)

    def _drop_old(self, now: float) -> None:
        self._windows = {
            key: window
            for key, window in self._windows.items()
            if now - window[0] < WINDOW
        }


breaker = Breaker()
local_windows = LocalWindows()
reserved = Reserved()


@cache
def connect() -> Script:
    client = redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=settings.REDIS_TIMEOUT,
        socket_connect_timeout=settings.REDIS_TIMEOUT,
        # A retry would wait as long again; the next call tries anew anyway.
        retry=Retry(NoBackoff(), 0),
        max_connections=64,
    )
    return client.register_script(COUNT)
