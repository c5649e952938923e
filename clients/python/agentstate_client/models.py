"""What the server answers, as frozen records. What they do not know stays in `extra`.

Ids are strings, times aware datetimes. Only what identifies a thing must be in the
answer: a server that is older or newer than this client can still be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from typing import Any, Generic, TypedDict, TypeVar

from agentstate_client import codec

T = TypeVar("T")
R = TypeVar("R", bound="Record")


class _NewEvent(TypedDict):
    type: str
    payload: Mapping[str, Any]


class NewEvent(_NewEvent, total=False):
    """An event to append; `id` is a UUID of your own that makes it unrepeatable."""

    id: str
    occurred_at: datetime | str
    run: str
    step: str


@dataclass(frozen=True, kw_only=True)
class Record:
    extra: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def from_json(cls: type[R], data: Mapping[str, Any]) -> R:
        known = {f.name: f for f in fields(cls) if f.name != "extra"}
        values: dict[str, Any] = {
            name: f.metadata.get("read", _as_it_is)(data[name])
            for name, f in known.items()
            if name in data
        }
        values["extra"] = {k: v for k, v in data.items() if k not in known}
        return cls(**values)


def _as_it_is(value: Any) -> Any:
    return value


def _read(read: Callable[[Any], Any], default: Any = MISSING) -> Any:
    return field(default=default, metadata={"read": read})


def _time() -> Any:
    return _read(codec.from_wire, default=None)


@dataclass(frozen=True, kw_only=True)
class Session(Record):
    """A session; `version` is that of its state. In lists `state` is None."""

    id: str
    key: str | None = None
    agent: str = ""
    subject: str = ""
    title: str = ""
    status: str = "open"
    state: Any = None
    version: int = 0
    last_seq: int = 0
    log_bytes: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    parent: str | None = None
    forked_from_seq: int | None = None
    created_at: datetime | None = _time()
    updated_at: datetime | None = _time()
    closed_at: datetime | None = _time()
    expires_at: datetime | None = _time()


@dataclass(frozen=True, kw_only=True)
class Event(Record):
    id: str
    seq: int
    type: str
    payload: dict[str, Any] = field(default_factory=dict)
    run: str | None = None
    step: str | None = None
    actor: str | None = None
    occurred_at: datetime | None = _time()
    created_at: datetime | None = _time()


@dataclass(frozen=True, kw_only=True)
class FeedEvent(Event):
    """An event of the project's feed, with the session and agent it belongs to.

    A stream also sets `position`: to go on behind this event, pass it as `after`.
    """

    session: str
    agent: str = ""
    position: str | None = None


@dataclass(frozen=True, kw_only=True)
class AppendedEvent(Record):
    id: str
    seq: int


@dataclass(frozen=True, kw_only=True)
class AppendResult(Record):
    events: list[AppendedEvent] = _read(
        lambda items: [AppendedEvent.from_json(item) for item in items]
    )
    last_seq: int


@dataclass(frozen=True, kw_only=True)
class StateVersion(Record):
    state: Any
    version: int


@dataclass(frozen=True, kw_only=True)
class Lock(Record):
    """A lease on a session's writes; `fence` only grows, one for each lease.

    Pass `token` as `lock_token` to the writes it protects, and `fence` to systems
    outside, which can refuse a holder that has been overtaken.
    """

    token: str
    fence: int = 0
    holder: str = ""
    until: datetime | None = _time()


@dataclass(frozen=True, kw_only=True)
class ToolCall(Record):
    """A call that has no result yet; `awaiting` says whose answer it waits for."""

    seq: int
    tool_call_id: str
    name: str = ""
    awaiting: str | None = None


@dataclass(frozen=True, kw_only=True)
class Replay(Record):
    """A session as it was after event `at_seq`.

    `conversation` holds its newest records up to there, oldest first; with
    `conversation_before_seq` as `before_seq` the next call gives those before them.
    """

    at_seq: int
    state: Any = None
    version: int = 0
    conversation: list[Event] = _read(
        lambda items: [Event.from_json(item) for item in items]
    )
    conversation_before_seq: int | None = None
    open_tool_calls: list[ToolCall] = _read(
        lambda items: [ToolCall.from_json(item) for item in items]
    )
    plan: Any = None


@dataclass(frozen=True, kw_only=True)
class Caller(Record):
    """What the server knows about the key in use."""

    key_id: str
    project_id: str
    actor: str = ""
    scopes: list[str] = field(default_factory=list)
    subject: str | None = None
    session_id: str | None = None
    run_id: str | None = None
    tool_allowlist: list[str] | None = None
    rate_limit_per_minute: int | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryEntry(Record):
    """A key of working memory. One that has `expired` has no value any more.

    `length` counts a list's items; an append tells it without the value.
    """

    key: str
    expired: bool = False
    value: Any = None
    version: int = 0
    policy: str = "fixed"
    ttl_s: int | None = None
    seconds_left: float | None = None
    expires_at: datetime | None = _time()
    length: int | None = None
    expired_at: datetime | None = _time()


@dataclass(frozen=True, kw_only=True)
class Step(Record):
    """A step of a run's plan, and how it goes with it."""

    id: str
    run: str = ""
    session: str = ""
    index: int = 0
    name: str = ""
    kind: str = ""
    tool: str = ""
    args: Any = None
    depends_on: list[int] = field(default_factory=list)
    effect: str = "idempotent"
    state: str = "pending"
    wait: dict[str, Any] | None = None
    attempt: int = 0
    failures: int = 0
    lost: int = 0
    previous: str | None = None
    worker: str = ""
    idempotency_key: str = ""
    result: Any = None
    error: Any = None

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


@dataclass(frozen=True, kw_only=True)
class Run(Record):
    """A run; in lists without its `steps`."""

    id: str
    session: str = ""
    key: str | None = None
    agent: str = ""
    state: str = "queued"
    reason: str = ""
    error: Any = None
    labels: dict[str, str] = field(default_factory=dict)
    input: Any = None
    plan_version: int = 1
    step_count: int = 0
    steps_by_state: dict[str, int] = field(default_factory=dict)
    parent_run: str | None = None
    created_at: datetime | None = _time()
    started_at: datetime | None = _time()
    ended_at: datetime | None = _time()
    steps: list[Step] = field(
        default_factory=list,
        metadata={"read": lambda items: [Step.from_json(item) for item in items]},
    )
    steps_next: str | None = None

    @property
    def has_ended(self) -> bool:
        return self.state in RUN_ENDED


ENDED = frozenset({"done", "failed", "skipped", "cancelled"})
RUN_ENDED = frozenset({"succeeded", "failed", "cancelled"})


@dataclass(frozen=True, kw_only=True)
class ClaimedStep(Record):
    """A step that is yours while the lease lasts.

    `idempotency_key` is the same for every attempt; `previous` is `unknown` if an
    attempt before ended without a word.
    """

    step: str
    lease_token: int
    run: str = ""
    session: str = ""
    index: int = 0
    name: str = ""
    agent: str = ""
    tool: str = ""
    args: Any = None
    effect: str = "idempotent"
    attempt: int = 1
    failures: int = 0
    lost: int = 0
    lease_s: float = 30.0
    lease_until: datetime | None = _time()
    timeout_at: datetime | None = _time()
    idempotency_key: str = ""
    previous: str | None = None


@dataclass(frozen=True, kw_only=True)
class ClaimedSteps(Record):
    """What a claim brought. Ask again after `retry_after_s`: the server is busy."""

    steps: list[ClaimedStep] = _read(
        lambda items: [ClaimedStep.from_json(item) for item in items]
    )
    retry_after_s: float = 0.0

    def __iter__(self) -> Iterator[ClaimedStep]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True, kw_only=True)
class ItemAnswer(Record):
    """The answer to one item of a heartbeat or report; `code` says why not."""

    step: str | None = None
    ok: bool = False
    status: int = 200
    code: str | None = None
    detail: str = ""
    state: str | None = None
    run: str | None = None
    run_state: str | None = None
    lease_until: datetime | None = _time()
    stop: bool = False


@dataclass(frozen=True, kw_only=True)
class InboxItem(Record):
    kind: str
    step: Step = _read(lambda item: Step.from_json(item))
    since: datetime | None = _time()


@dataclass(frozen=True, kw_only=True)
class Effect(Record):
    """An effect of the ledger; `token` is there if it is yours to carry out."""

    key: str
    outcome: str
    token: int | None = None
    run: str | None = None
    step: str | None = None
    request: Any = None
    result: Any = None
    begun_at: datetime | None = _time()
    done_at: datetime | None = _time()


@dataclass(frozen=True)
class LoadedSession:
    """A session and all its events up to `session.last_seq`, as of one moment."""

    session: Session
    events: list[Event]

    @property
    def id(self) -> str:
        return self.session.id

    @property
    def state(self) -> Any:
        return self.session.state

    @property
    def version(self) -> int:
        return self.session.version


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a list; `next` is the cursor of the page after it, or None.

    A page of the feed also has `cursor`: where to go on later, as `after`.
    """

    items: list[T]
    next: str | None = None
    cursor: str | None = None
    extra: dict[str, Any] = field(default_factory=dict, repr=False)

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)
