"""Working memory: what a task needs at hand, in Redis, for a while.

Each session and each run is a scope of its own. An entry lies under the scope's prefix,
which is made of ids alone, followed by the entry's name byte for byte: no name can lead
out of its scope and none is a pattern. A session and its runs lie in one slot of a
cluster. Every operation is one run of `working_memory.lua`, and so atomic.

Losing it loses no fact: the log, runs and state never depend on it. While Redis is down
every call raises WorkingMemoryUnavailable at once. See docs/working-memory.md.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import redis
from django.db import transaction
from django_redis import get_redis_connection
from procrastinate.contrib.django import app
from redis.commands.core import Script

from access_app.errors import IdempotencyKeyReused
from access_app.idempotency import IdempotencyRequest
from access_app.rate_limits import breaker
from agentstate import codec
from agentstate.errors import FieldError
from sessions_app.errors import (
    CounterOverflow,
    EntryChanged,
    EntryExists,
    EntryExpired,
    EntryNotFound,
    NotAList,
    NotAnInteger,
    SessionClosed,
    ValueTooLarge,
    WorkingMemoryFull,
    WorkingMemoryUnavailable,
)

logger = logging.getLogger(__name__)

DEFAULT_TTL = 3600  # seconds
MAX_TTL = 30 * 24 * 3600  # seconds
KEY_MAX = 255  # characters
VALUE_MAX_BYTES = 256 * 1024  # as JSON text
ENTRIES_MAX = 10_000  # in one scope
PAGE_BYTES = 4 * 1024 * 1024  # a page of the list ends early once its values pass this
EXPIRED_TOLD = 3600  # seconds for which a scope says of an entry that it has expired
ANSWERS_KEPT = 3600  # seconds for which a repeated Idempotency-Key is recognised
ENDED_MARK = 3600  # seconds; longer than any call that began before the end can take

END_JOB = "sessions_app.end_working_memory"

type Policy = Literal["fixed", "sliding"]


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose memory it is: a session's, or that of one of its runs.

    `fence` is the last seq of the session's log as just read: what was read before the
    scope ended can then not be written after it.
    """

    project_id: UUID
    session_id: UUID
    fence: int
    run_id: UUID | None = None

    @property
    def prefix(self) -> str:
        return f"{self.session_prefix}:{f'run:{self.run_id}' if self.run_id else 'own'}"

    @property
    def session_prefix(self) -> str:
        return f"agentstate:wm:{{{self.project_id}:{self.session_id}}}"

    def keys(self, name: str, call: IdempotencyRequest | None) -> list[str]:
        """Return KEYS of the script; `name` "" stands for all entries."""
        own, session = self.prefix, self.session_prefix
        return [
            f"{own}:names",
            f"{own}:expiries",
            f"{own}:ended",
            f"{session}:erased",
            f"{session}:runs",
            f"{own}:entry:{name}",
            f"{own}:answer:{_digest(call)}" if call else f"{own}:answer",
            f"{own}:sum",
        ]


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry as it is now. `value_text` is its JSON, "" if the call did not read it;
    `length` counts the items of a list."""

    key: str
    version: int
    policy: Policy
    ttl: float  # seconds, as it was set
    seconds_left: float
    expires_at: datetime
    length: int | None
    value_text: str


@dataclass(frozen=True, slots=True)
class Expired:
    """The name of an entry that has run out, and when."""

    key: str
    expired_at: datetime


@dataclass(frozen=True, slots=True)
class Written:
    entry: Entry
    is_new: bool
    is_replay: bool


@dataclass(frozen=True, slots=True)
class Condition:
    """What must hold for a write. `version` is If-Match's (`*`: any entry)."""

    version: int | str | None = None
    is_new: bool = False


ALWAYS = Condition()


def get_entry(scope: Scope, key: str) -> Entry:
    """Return an entry, and begin its life anew if its policy is sliding.

    Raises EntryNotFound, or EntryExpired while that is still known.
    """
    _, answer, value = _run("get", scope, key)
    return _entry(key, answer, _text(value))


def list_entries(
    scope: Scope, *, after: str = "", limit: int
) -> tuple[list[Entry | Expired], bool]:
    """Return entries and expired names in order of name, and whether there are more.

    Reading the list prolongs no life.
    """
    _, more, *items = _run("list", scope, "", after=after, rest=[limit, PAGE_BYTES])
    found: list[Entry | Expired] = []
    for name, told, *value in items:
        key = _text(name)
        if value:
            found.append(_entry(key, told, _text(value[0])))
        else:
            found.append(Expired(key, _instant(told)))
    return found, more == b"1"


def put_entry(
    scope: Scope,
    key: str,
    value: Any,
    *,
    ttl: int = DEFAULT_TTL,
    policy: Policy = "fixed",
    condition: Condition = ALWAYS,
    call: IdempotencyRequest | None = None,
) -> Written:
    """Set value and expiry together, by one command."""
    text = _checked_text(value)
    length = str(len(value)) if isinstance(value, list) else "-"
    return _write(
        "put", scope, key, [*_life(ttl, policy), text, length], condition, call, text
    )


def increment_entry(
    scope: Scope,
    key: str,
    by: int,
    *,
    ttl: int = DEFAULT_TTL,
    policy: Policy = "fixed",
    condition: Condition = ALWAYS,
    call: IdempotencyRequest | None = None,
) -> Written:
    """Add to an integer of 64 bits; one that does not exist begins at 0.

    `ttl` and `policy` are those of a new entry: one that exists keeps its own. Raises
    NotAnInteger or CounterOverflow.
    """
    return _write("increment", scope, key, [*_life(ttl, policy), by], condition, call)


def append_entry(
    scope: Scope,
    key: str,
    item: Any,
    *,
    ttl: int = DEFAULT_TTL,
    policy: Policy = "fixed",
    condition: Condition = ALWAYS,
    call: IdempotencyRequest | None = None,
) -> Written:
    """Add an item to a list; as `increment_entry`. Raises NotAList, ValueTooLarge."""
    rest = [*_life(ttl, policy), _checked_text(item)]
    return _write("append", scope, key, rest, condition, call)


def touch_entry(
    scope: Scope,
    key: str,
    *,
    ttl: int | None = None,
    condition: Condition = ALWAYS,
    call: IdempotencyRequest | None = None,
) -> Written:
    """Begin an entry's life anew, with `ttl` or its own. Its version stays."""
    rest = [ttl * 1000 if ttl is not None else ""]
    return _write("touch", scope, key, rest, condition, call)


def delete_entry(
    scope: Scope,
    key: str,
    *,
    condition: Condition = ALWAYS,
    call: IdempotencyRequest | None = None,
) -> bool:
    """Delete exactly this entry; True if this call was answered so before."""
    outcome, *_ = _run("delete", scope, key, condition=condition, call=call)
    return bool(outcome == b"replayed")


def end_scope(scope: Scope) -> int:
    """Delete all that a scope holds; return how many entries.

    From now on writes whose fence is not beyond this one's are refused. Ending it again
    with the same fence deletes nothing more.
    """
    _, dropped = _run("end", scope, "", rest=[ENDED_MARK * 1000])
    return int(dropped)


def erase_scopes(project_id: UUID, session_id: UUID) -> int:
    """Delete what a session and its runs hold, for good; return how many entries."""
    scope = Scope(project_id, session_id, 0)
    rest = [ENDED_MARK * 1000, f"{scope.session_prefix}:run:"]
    _, dropped = _run("erase", scope, "", rest=rest)
    return int(dropped)


def end_after_commit(scope: Scope) -> None:
    """End the scope when the caller's transaction is committed, whatever happens.

    At once if Redis is there; the job sees to it if it is not, or if this process dies.
    """
    _defer(scope.project_id, scope.session_id, scope.fence)
    transaction.on_commit(lambda: _try(lambda: end_scope(scope)))


def erase_after_commit(project_id: UUID, session_id: UUID) -> None:
    """As `end_after_commit`, for `erase_scopes`."""
    _defer(project_id, session_id, None)
    transaction.on_commit(lambda: _try(lambda: erase_scopes(project_id, session_id)))


def _defer(project_id: UUID, session_id: UUID, fence: int | None) -> None:
    app.configure_task(END_JOB).defer(
        project_id=str(project_id), session_id=str(session_id), fence=fence
    )


def _try(end: Callable[[], int]) -> None:
    try:
        end()
    except WorkingMemoryUnavailable:
        logger.warning("working memory ends later: Redis is away")


def check_key(key: str) -> None:
    """Raise FieldError for a name that is longer than one may be."""
    if not 1 <= len(key) <= KEY_MAX:
        raise FieldError("key", "bad_key", f"a key has 1 to {KEY_MAX} characters")


def _write(
    operation: str,
    scope: Scope,
    key: str,
    rest: Sequence[Any],
    condition: Condition,
    call: IdempotencyRequest | None,
    value_text: str = "",
) -> Written:
    outcome, answer, number = _run(
        operation, scope, key, condition=condition, call=call, rest=rest
    )
    entry = _entry(key, answer, value_text or _text(number))
    return Written(entry, answer.endswith(b" 1"), outcome == b"replayed")


def _run(
    operation: str,
    scope: Scope,
    key: str,
    *,
    after: str = "",
    condition: Condition = ALWAYS,
    call: IdempotencyRequest | None = None,
    rest: Sequence[Any] = (),
) -> list[Any]:
    """Run the script and return what it says; raise what its refusals mean."""
    arguments = [
        operation,
        key or after,
        scope.fence,
        EXPIRED_TOLD * 1000,
        call.fingerprint.hex() if call else "",
        ANSWERS_KEPT * 1000,
        "" if condition.version is None else condition.version,
        "*" if condition.is_new else "",
        str(scope.run_id or ""),
        *rest,
    ]
    reply = _ask_redis(scope.keys(key, call), arguments)
    if reply[0] not in (b"ok", b"replayed"):
        _refuse(reply)
    return reply


def _ask_redis(keys: list[str], arguments: list[Any]) -> list[Any]:
    with asking_redis() as client:
        reply: list[Any] = _script()(keys=keys, args=arguments, client=client)
    return reply


@contextmanager
def asking_redis() -> Iterator[redis.Redis]:
    """Give the client; what Redis cannot do raises WorkingMemoryUnavailable.

    After a failure nobody waits for Redis for a second, then one call tries.
    """
    if not breaker.lets_through():
        raise WorkingMemoryUnavailable
    try:
        yield get_redis_connection("default")
    except (redis.ConnectionError, redis.TimeoutError) as exc:
        breaker.open()
        raise WorkingMemoryUnavailable from exc
    except redis.RedisError as exc:
        # It answers, but refuses: out of memory, a replica, a command not allowed.
        logger.warning("working memory: Redis refuses", extra={"error": str(exc)[:200]})
        raise WorkingMemoryUnavailable from exc
    breaker.close()


def _refuse(reply: list[Any]) -> None:
    match [part.decode() for part in reply]:
        case ["absent", ""]:
            raise EntryNotFound
        case ["absent", ends]:
            raise EntryExpired(expired_at=instant_text(_instant(ends)))
        case ["ended"]:
            raise SessionClosed("This working memory has ended, with what it was for.")
        case ["conflict", version, value]:
            current = codec.RawJSON(value) if value else None
            raise EntryChanged(current_version=int(version), current_value=current)
        case ["exists", version]:
            raise EntryExists(current_version=int(version))
        case ["reused"]:
            raise IdempotencyKeyReused
        case ["full"]:
            raise WorkingMemoryFull(limit=ENTRIES_MAX)
        case ["not_an_integer"]:
            raise NotAnInteger
        case ["not_a_list"]:
            raise NotAList
        case ["overflow"]:
            raise CounterOverflow
        case ["too_large"]:
            raise ValueTooLarge(limit_bytes=VALUE_MAX_BYTES)
        case unknown:
            raise AssertionError(unknown)


def _checked_text(value: Any) -> str:
    text = codec.dumps(value)
    if len(text.encode()) > VALUE_MAX_BYTES:
        raise ValueTooLarge(limit_bytes=VALUE_MAX_BYTES)
    return text


def _life(ttl: int, policy: Policy) -> list[Any]:
    return [ttl * 1000, policy[0], VALUE_MAX_BYTES, ENTRIES_MAX]


def _entry(key: str, answer: bytes, value_text: str) -> Entry:
    version, ttl, policy, length, ends, left, _ = answer.decode().split(" ")
    return Entry(
        key=key,
        version=int(version),
        policy="sliding" if policy == "s" else "fixed",
        ttl=int(ttl) / 1000,
        seconds_left=int(left) / 1000,
        expires_at=_instant(ends),
        length=None if length == "-" else int(length),
        value_text=value_text,
    )


def _instant(milliseconds: bytes | str) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=int(milliseconds))


def instant_text(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(raw: bytes) -> str:
    return raw.decode()


def _digest(call: IdempotencyRequest) -> str:
    return hashlib.sha256(call.caller_key_id.bytes + call.scope_hash).hexdigest()


@cache
def _script() -> Script:
    text = Path(__file__).with_suffix(".lua").read_text()
    script: Script = get_redis_connection("default").register_script(text)
    return script
