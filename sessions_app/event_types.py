"""The types of events and the shape of their payloads; docs/events.md is made of this.

A client may use any dotted lower-case name. A known type is checked for the fields
that readers rely on; every other field is kept as sent. Names that begin with one of
SERVER_PREFIXES are written by the server alone: projections are rebuilt from them.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from agentstate.codec import json_path
from agentstate.errors import FieldError

SESSION_CREATED = "session.created"
SESSION_UPDATED = "session.updated"
SESSION_CLOSED = "session.closed"
SESSION_REOPENED = "session.reopened"
SESSION_ARCHIVED = "session.archived"
STATE_CHANGED = "state.changed"

MESSAGE_USER = "message.user"
MESSAGE_ASSISTANT = "message.assistant"
MESSAGE_SYSTEM = "message.system"
TOOL_CALL = "tool.call"
TOOL_RESULT = "tool.result"
REASONING = "reasoning"

MESSAGE_TYPES = (MESSAGE_USER, MESSAGE_ASSISTANT, MESSAGE_SYSTEM)
CONVERSATION_TYPES = (*MESSAGE_TYPES, TOOL_CALL, TOOL_RESULT, REASONING)

# Written by context_app. Named here, since the log has an index for them.
CONTEXT_COMPACTED = "context.compacted"
CONTEXT_RESTORED = "context.restored"
CONTEXT_TYPES = (CONTEXT_COMPACTED, CONTEXT_RESTORED)

# Written by runs_app; what it says of a failure is read while rows are locked.
HANDOFF_OFFERED = "handoff.offered"

# Written by runs_app, and indexed too: where a plan at some seq begins.
RUN_CREATED = "run.created"
RUN_BEGUN = "run.begun"
RUN_BEGINNINGS = (RUN_CREATED, RUN_BEGUN)

ARTIFACT_CREATED = "artifact.created"
ARTIFACT_DELETED = "artifact.deleted"

SERVER_PREFIXES = (
    "state.",
    "run.",
    "step.",
    "memory.",
    "session.",
    "handoff.",
    "context.",
    "artifact.",
)
TYPE_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+\Z")
TYPE_MAX_LENGTH = 100

KINDS: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "array": list,
    "object": dict,
    "boolean": bool,
    "null": type(None),
}


@dataclass(frozen=True)
class PayloadField:
    """One field of a payload. `kinds` are JSON type names; empty means any value."""

    kinds: tuple[str, ...]
    doc: str
    required: bool = False
    choices: tuple[str, ...] = ()
    max_length: int | None = None


@dataclass(frozen=True)
class EventType:
    """A type that we know: what it means, and what its payload must hold."""

    name: str
    doc: str
    fields: dict[str, PayloadField] = field(default_factory=dict)
    example: dict[str, Any] = field(default_factory=dict)

    @property
    def is_from_server(self) -> bool:
        return self.name.startswith(SERVER_PREFIXES)


CALL_ID = PayloadField(
    ("string",),
    "Pairs a call with its result. May repeat in a session: a result answers the "
    "latest open call of its id.",
    required=True,
    max_length=200,
)
CONTENT = PayloadField(
    ("string", "array"),
    "The text, or a list of parts, each an object with a `type`. Parts of kinds that "
    "are not known here are kept.",
    required=True,
)

EVENT_TYPES = {
    known.name: known
    for known in (
        EventType(
            MESSAGE_USER,
            "What the user said.",
            {"content": CONTENT},
            {"content": "Where is order 1042?"},
        ),
        EventType(
            MESSAGE_ASSISTANT,
            "What the agent said. A turn that only calls tools has `content` null.",
            {
                "content": PayloadField(
                    ("string", "array", "null"), CONTENT.doc, required=True
                )
            },
            {"content": "Let me look that up."},
        ),
        EventType(
            MESSAGE_SYSTEM,
            "Instructions that frame the conversation.",
            {"content": CONTENT},
            {"content": "You are a support agent."},
        ),
        EventType(
            TOOL_CALL,
            "The agent calls a tool. It stays open until a `tool.result` of its id.",
            {
                "tool_call_id": CALL_ID,
                "name": PayloadField(
                    ("string",), "The tool's name.", required=True, max_length=200
                ),
                "arguments": PayloadField(
                    (), "As the model gave them: an object, or its JSON as a string."
                ),
                "awaiting": PayloadField(
                    ("string", "null"),
                    "`human` while a person has to answer; never repaired away.",
                    choices=("human",),
                ),
            },
            {
                "tool_call_id": "call_1",
                "name": "find_order",
                "arguments": {"order_id": 1042},
            },
        ),
        EventType(
            TOOL_RESULT,
            "What the tool answered. An empty string, null and an absent `content` "
            "are three different things, and stay so.",
            {
                "tool_call_id": CALL_ID,
                "content": PayloadField((), "Any JSON value."),
                "name": PayloadField(("string", "null"), "The tool's name."),
                "is_error": PayloadField(("boolean", "null"), "The tool failed."),
                "synthetic": PayloadField(
                    ("boolean", "null"),
                    "A stand-in for a result that never came; a real one replaces it.",
                ),
            },
            {"tool_call_id": "call_1", "content": {"status": "shipped"}},
        ),
        EventType(
            REASONING,
            "What the model thought, for models that must see it again.",
            {"content": PayloadField((), "Any JSON value.")},
            {"content": "The user wants the delivery date."},
        ),
        EventType(
            SESSION_CREATED,
            "The session's first record, at seq 0: what it was created with. A fork "
            "names its `parent` and `forked_from_seq`.",
            example={"key": "order-1042", "agent": "support", "subject": "u-100"},
        ),
        EventType(
            SESSION_UPDATED,
            "Fields of the session were changed: `changes` holds their new values.",
            example={"changes": {"title": "Order 1042"}},
        ),
        EventType(
            SESSION_CLOSED,
            "The session takes no more events. `reason` says why.",
            example={"reason": "done"},
        ),
        EventType(
            SESSION_REOPENED,
            "A closed session takes events again.",
            example={"reason": "the customer called back"},
        ),
        EventType(
            SESSION_ARCHIVED, "The session was put away.", example={"reason": ""}
        ),
        EventType(
            STATE_CHANGED,
            "The session's state became `version`: `patch` (RFC 6902) was applied to "
            "the version before.",
            example={
                "version": 4,
                "patch": [{"op": "replace", "path": "/step", "value": "pay"}],
            },
        ),
        EventType(
            ARTIFACT_CREATED,
            "A file was stored. A name that was in use gets the next `version`. A copy "
            "that a handoff made names its `source`.",
            example={
                "artifact": "0199b2a0-9e10-7b12-8f6e-5d1c0a9b7e42",
                "name": "report.pdf",
                "version": 1,
                "media_type": "application/pdf",
                "size": 48213,
                "sha256": "9f86d081884c7d659a2feaa0c55ad015"
                "a3bf4f1b2b0b822cd15d6c15b0f00a08",
                "metadata": {},
            },
        ),
        EventType(
            ARTIFACT_DELETED,
            "A file was deleted: its bytes are gone, unless another artifact of the "
            "project holds the same.",
            example={
                "artifact": "0199b2a0-9e10-7b12-8f6e-5d1c0a9b7e42",
                "reason": "",
            },
        ),
        EventType(
            CONTEXT_COMPACTED,
            "A summary stands for the events `from_seq` to `up_to_seq`, without those "
            "in `keep`, in what a model is shown. `active` are the seqs of all "
            "summaries in force from now on, `replaces` those that this one took in, "
            "`lost` what was known to be missing in it.",
            example={
                "from_seq": 1,
                "up_to_seq": 40,
                "summary": "The customer asked for order 1042; it was shipped.",
                "keep": [],
                "method": "given",
                "status": "compacted",
                "active": [61],
                "replaces": [],
                "lost": [],
            },
        ),
        EventType(
            CONTEXT_RESTORED,
            "A compaction was undone: `undone` is its seq, `active` are the summaries "
            "in force from now on. Models are shown the events themselves again.",
            example={"undone": 61, "active": []},
        ),
    )
}


def describe(*described: EventType) -> None:
    """Add types of an app above to what is known and documented.

    Called from that app's AppConfig.ready. They are types that the server writes:
    clients are refused them by SERVER_PREFIXES.
    """
    EVENT_TYPES.update({known.name: known for known in described})


def check_event(index: int, type_name: Any, payload: Any) -> None:
    """Raise FieldError if a client may not append this.

    `index` is its place in the batch: paths are `events[index].type` and
    `events[index].payload.<field>`.
    """
    _check_type(index, type_name)
    if not isinstance(payload, dict):
        raise _refused((index, "payload"), "invalid_type", "must be an object")
    known = EVENT_TYPES.get(type_name)
    if known:
        for name, spec in known.fields.items():
            _check_field(index, name, spec, payload)
    if isinstance(content := payload.get("content"), list) and (
        type_name in MESSAGE_TYPES
    ):
        _check_parts(index, content)


def _check_type(index: int, type_name: Any) -> None:
    if not isinstance(type_name, str):
        raise _refused((index, "type"), "invalid_type", "must be a string")
    if type_name in EVENT_TYPES and not EVENT_TYPES[type_name].is_from_server:
        return
    if type_name.startswith(SERVER_PREFIXES):
        raise _refused(
            (index, "type"),
            "reserved_type",
            f"{type_name[:60]!r} is written by the server alone",
        )
    if len(type_name) > TYPE_MAX_LENGTH or not TYPE_NAME.match(type_name):
        raise _refused(
            (index, "type"),
            "invalid_type_name",
            "must be a dotted lower-case name such as acme.ticket_opened, "
            f"of at most {TYPE_MAX_LENGTH} characters",
        )


def _check_field(
    index: int, name: str, spec: PayloadField, payload: dict[str, Any]
) -> None:
    path = (index, "payload", name)
    if name not in payload:
        if spec.required:
            raise _refused(path, "required", "is required")
        return
    value = payload[name]
    if spec.kinds and not any(isinstance(value, KINDS[kind]) for kind in spec.kinds):
        raise _refused(path, "invalid_type", f"must be {' or '.join(spec.kinds)}")
    if isinstance(value, str):
        if spec.choices and value not in spec.choices:
            raise _refused(
                path, "invalid_choice", f"must be {' or '.join(spec.choices)}"
            )
        if spec.max_length:
            if "\0" in value:
                raise _refused(path, "null_character", "must not hold U+0000")
            if len(value) > spec.max_length:
                raise _refused(
                    path, "too_long", f"is longer than {spec.max_length} characters"
                )


def _check_parts(index: int, parts: list[Any]) -> None:
    for at, part in enumerate(parts):
        path = (index, "payload", "content", at)
        if not isinstance(part, dict):
            raise _refused(path, "invalid_type", "must be an object")
        if not isinstance(part.get("type"), str):
            raise _refused((*path, "type"), "required", "must be a string")


def _refused(path: tuple[str | int, ...], code: str, detail: str) -> FieldError:
    return FieldError(json_path(("events", *path)), code, detail)
