"""Lines of a file to what each asks to be stored: a session, and events for it.

Identity comes from the source: a session's key is the line's own `id` (or, without one,
a hash of the line), an event's id is derived from the ids of its session and message.
So what is imported twice is stored once, and slices that overlap meet.
"""

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, BinaryIO
from uuid import UUID, uuid5

from access_app.models import Project
from agentstate import codec
from agentstate.errors import AppError, FieldError
from sessions_app import event_types as types
from sessions_app.append import NewEvent
from sessions_app.facts import NAME_MAX, checked_facts, instant_or_null
from sessions_app.services import SessionFields
from sessions_app.transcripts import anthropic, openai
from sessions_app.transcripts.drafts import Draft

NAMESPACE = UUID("5f0c1f5e-8f0b-5c0e-9d0a-4d6b1c5f7a21")
LINE_MAX_BYTES = 64 * 1024 * 1024
IMPORTED_KEY = "imported:"  # begins the key of a session that had none where it was
IMPORTED_TYPE = "imported."  # begins the type of an event that another server wrote
# What a line says about itself may be the field of an event or of its session.
EVENT_FIELDS = {"session", "seq", "id", "type", "payload", "occurred_at", "run", "step"}
TOLD_FIELDS = {"actor", "created_at", "project"}
TIME_FIELDS = ("ts", "timestamp", "created_at")


class LineTooLong(AppError):
    """The line is longer than a line may be."""

    code, status = "line_too_long", 413


class AnotherProject(AppError):
    """The line belongs to another project than the one that is imported into."""

    code, status = "another_project", 422


@dataclass(frozen=True)
class Unit:
    """What one line asks for: a session of this key, and these events in it.

    A line is stored whole or not at all.
    """

    line: int
    key: str
    fields: SessionFields
    events: list[NewEvent] = field(default_factory=list)
    is_conversation: bool = False


@dataclass(frozen=True)
class Source:
    """A file's form, and what its lines may leave unsaid."""

    project: Project
    form: str
    agent: str = ""
    session: str = ""

    def units(
        self, file: BinaryIO, refuse: Callable[[int, AppError], None]
    ) -> Iterator[Unit]:
        """Yield what each line asks for; what is wrong with one goes to `refuse`."""
        repeats = _Repeats()
        read = {
            "openai": self._chat_unit,
            "anthropic": self._chat_unit,
            "jsonl": self._event_unit,
        }[self.form]
        for number, raw in _lines(file):
            try:
                if raw is None:
                    raise LineTooLong(limit_bytes=LINE_MAX_BYTES)
                value = codec.loads(raw)
                if not isinstance(value, dict):
                    raise FieldError("$", "not_an_object", "must be an object")
                yield read(number, value, repeats)
            except AppError as exc:
                refuse(number, exc)

    def _chat_unit(
        self, number: int, line: dict[str, Any], repeats: "_Repeats"
    ) -> Unit:
        if "messages" in line:
            return self._conversation(number, line)
        if "role" in line:
            return self._message(number, line, repeats)
        raise FieldError(
            "messages", "required", "a line is a conversation or a message"
        )

    def _conversation(self, number: int, line: dict[str, Any]) -> Unit:
        messages = line["messages"]
        if not isinstance(messages, list):
            raise FieldError("messages", "invalid_type", "must be a list")
        key = _as_key(line.get("id")) or f"sha256:{_digest(line)}"
        said = {name: value for name, value in line.items() if name != "messages"}
        events: list[NewEvent] = []
        if self.form == anthropic.FORM and "system" in line:
            events = self._events(
                key, ["system"], anthropic.read_system(said["system"])
            )
            if events:
                del said["system"]
        seen: dict[Any, int] = {}
        for index, message in enumerate(messages):
            own = _own_id(message)
            place = ["index", index] if own is None else ["id", own, seen.get(own, 0)]
            seen[own] = seen.get(own, 0) + 1
            events += self._events(key, place, self._drafts(message), message)
        fields = SessionFields(
            key=key,
            agent=_fitting(line.get("agent")) or self.agent,
            subject=_fitting(line.get("subject")),
            metadata={"import": {"format": self.form, "line": said}},
        )
        return Unit(number, key, fields, events, is_conversation=True)

    def _message(self, number: int, line: dict[str, Any], repeats: "_Repeats") -> Unit:
        named = _as_key(line.get("session")) or _as_key(line.get("session_id"))
        key = named or self.session
        own = _own_id(line)
        place = ["id", own, 0]
        if own is None:
            digest = _digest(line)
            place = ["hash", digest, repeats.count(key, digest)]
        fields = SessionFields(key=key, agent=_fitting(line.get("agent")) or self.agent)
        return Unit(
            number, key, fields, self._events(key, place, self._drafts(line), line)
        )

    def _drafts(self, message: Any) -> list[Draft]:
        if self.form == openai.FORM:
            return openai.read_message(message)
        return anthropic.read_message(message)

    def _events(
        self, key: str, place: list[Any], drafts: list[Draft], message: Any = None
    ) -> list[NewEvent]:
        return [
            NewEvent(
                type=event_type,
                payload=payload,
                id=_derived_id(self.form, key, *place, part),
                occurred_at=_when(message),
            )
            for part, (event_type, payload) in enumerate(drafts)
        ]

    def _event_unit(
        self, number: int, line: dict[str, Any], repeats: "_Repeats"
    ) -> Unit:
        self._check_event_line(line)
        name = line.get("session", self.session)
        event_type, payload = line.get("type"), line.get("payload")
        if event_type == types.SESSION_CREATED:
            return _session_unit(number, name, payload)
        given = line.get("id")
        if given is None:
            digest = _digest({**line, "seq": None})
            event_id = _derived_id(name, digest, repeats.count(name, digest))
        else:
            event_id = _uuid_or_none(given) or _derived_id(name, "id", given)
        if isinstance(event_type, str):
            event_type = _as_imported(event_type)
        if not _is_applied(event_type):
            _check_event(event_type, payload)
        elif not isinstance(payload, dict):
            raise FieldError("payload", "invalid_type", "must be an object")
        event = NewEvent(
            type=str(event_type),
            payload=payload or {},
            id=event_id,
            run_id=_uuid(line, "run"),
            step_id=_uuid(line, "step"),
            occurred_at=instant_or_null(line.get("occurred_at"), "occurred_at"),
        )
        return Unit(number, name, SessionFields(key=name, agent=self.agent), [event])

    def _check_event_line(self, line: dict[str, Any]) -> None:
        for name in line:
            if name not in EVENT_FIELDS | TOLD_FIELDS:
                raise FieldError(
                    name, "unknown_field", "is no field of an event's line"
                )
        for name in ("type", "payload"):
            if name not in line:
                raise FieldError(name, "required", "is required")
        session = line.get("session", self.session)
        if not session or _as_key(session) != session:
            raise FieldError("session", "invalid", "must be a name of 1 to 255 letters")
        owner = line.get("project")
        ours = (str(self.project.id), self.project.name, self.project.slug)
        if owner is not None and owner not in ours:
            raise AnotherProject


def _session_unit(number: int, name: str, payload: Any) -> Unit:
    if not isinstance(payload, dict):
        raise FieldError("payload", "invalid_type", "must be an object")
    # A fork comes in as a session of its own: its line of events is complete.
    told = {
        field_name: value
        for field_name, value in payload.items()
        if field_name not in ("parent", "forked_from_seq")
    }
    facts = checked_facts(told, "payload")
    key = facts.pop("key", None) or f"{IMPORTED_KEY}{name}"
    for field_name in ("status", "closed_at"):
        facts.pop(field_name, None)
    return Unit(number, key, SessionFields(key=key, **facts))


def _is_applied(event_type: Any) -> bool:
    """Whether an event is one whose doing is done again, not only kept."""
    return isinstance(event_type, str) and (
        event_type == types.STATE_CHANGED or event_type.startswith("session.")
    )


def _as_imported(event_type: str) -> str:
    """Return the type under which an event is kept.

    A run.* or memory.* tells of rows that are where it was written; here it is only
    what was said, under a name that no reader takes for more.
    """
    if not event_type.startswith(types.SERVER_PREFIXES):
        return event_type
    if _is_applied(event_type) and event_type in types.EVENT_TYPES:
        return event_type
    return f"{IMPORTED_TYPE}{event_type}"


def _check_event(event_type: Any, payload: Any) -> None:
    """`check_event` with the paths of a line, `type` and `payload.content`."""
    try:
        types.check_event(0, event_type, payload)
    except FieldError as exc:
        [error] = exc.extra["errors"]
        path = error["path"].removeprefix("events[0].")
        raise FieldError(path, error["code"], error["detail"]) from exc


class _Repeats:
    """Counts equal lines that have no id, on disk: a file may have any length."""

    def __init__(self) -> None:
        self._table = sqlite3.connect("", isolation_level=None)
        self._table.execute("PRAGMA journal_mode = off")
        self._table.execute("CREATE TABLE seen (digest PRIMARY KEY, n) WITHOUT ROWID")

    def count(self, key: str, digest: str) -> int:
        """Return how often this line has come before in its session."""
        [found] = self._table.execute(
            "INSERT INTO seen VALUES (?, 0)"
            " ON CONFLICT DO UPDATE SET n = n + 1 RETURNING n",
            [hashlib.sha256(f"{key}\0{digest}".encode()).digest()],
        ).fetchone()
        return int(found)


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """Yield the lines that are not blank, counted from 1; None for one too long."""
    number = 0
    while raw := file.readline(LINE_MAX_BYTES + 1):
        number += 1
        is_long = len(raw) > LINE_MAX_BYTES
        while not raw.endswith(b"\n") and (rest := file.readline(LINE_MAX_BYTES)):
            raw = rest
        if is_long:
            yield number, None
        elif raw := raw.removeprefix(b"\xef\xbb\xbf").strip():
            yield number, raw


def _as_key(value: Any) -> str:
    """A source's id as a session's key; empty if it cannot be one."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    return _fitting(value)


def _fitting(value: Any) -> str:
    if isinstance(value, str) and len(value) <= NAME_MAX and "\0" not in value:
        return value
    return ""


def _own_id(message: Any) -> Any:
    own = message.get("id") if isinstance(message, dict) else None
    return own if isinstance(own, str | int) and not isinstance(own, bool) else None


def _digest(value: Any) -> str:
    return hashlib.sha256(codec.dumps(value).encode()).hexdigest()


def _derived_id(*parts: Any) -> UUID:
    return uuid5(NAMESPACE, codec.dumps(parts))


def _when(message: Any) -> datetime | None:
    """A message's own time, as the claim that it is; it orders nothing."""
    if isinstance(message, dict):
        for name in TIME_FIELDS:
            try:
                if at := instant_or_null(message.get(name), name):
                    return at
            except FieldError:
                continue
    return None


def _uuid_or_none(value: Any) -> UUID | None:
    try:
        return UUID(value)
    except (ValueError, AttributeError, TypeError):
        return None


def _uuid(line: dict[str, Any], name: str) -> UUID | None:
    value = line.get(name)
    if value is not None and _uuid_or_none(value) is None:
        raise FieldError(name, "invalid_uuid", "must be a UUID")
    return _uuid_or_none(value)
