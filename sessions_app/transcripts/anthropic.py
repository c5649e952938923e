"""Messages in Anthropic's form, to events and back.

A message's text and other blocks are a message.*; each `tool_use` block is a tool.call
behind its message.assistant, each `tool_result` block a tool.result before the rest of
its user message. Where blocks lay in another order, `_source` keeps their places. The
conversation's `system` is its first message.system.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from agentstate import codec
from agentstate.errors import AppError
from sessions_app import event_types as types
from sessions_app.transcripts.drafts import (
    SOURCE,
    Draft,
    Payload,
    checked,
    noted,
    restore_content,
    split_notes,
    with_content,
)

FORM = "anthropic"
TYPES = {
    "user": types.MESSAGE_USER,
    "assistant": types.MESSAGE_ASSISTANT,
    "system": types.MESSAGE_SYSTEM,
}
ROLES = {event_type: role for role, event_type in TYPES.items()}


def read_system(system: Any) -> list[Draft]:
    """Return the event for a conversation's `system`; none if it is no content."""
    if not isinstance(system, str | list):
        return []
    draft = (types.MESSAGE_SYSTEM, noted(FORM, {"content": system}, top=True))
    [found] = checked(FORM, system, [draft], lambda drafts: _systems(drafts))
    return [found] if found == draft else []


def _systems(drafts: Iterable[Draft]) -> Iterator[Any]:
    for _, payload in drafts:
        yield payload["content"]


def is_system(event_type: str, payload: Payload) -> bool:
    """Whether an event is what `read_system` made."""
    return (
        event_type == types.MESSAGE_SYSTEM
        and split_notes(FORM, payload)[1].get("top") is True
    )


def read_message(message: Any) -> list[Draft]:
    """Return the events that one message becomes; at least one."""
    return checked(FORM, message, _drafts(message), write_messages)


def _drafts(message: Any) -> list[Draft] | None:
    if not isinstance(message, dict) or SOURCE in message:
        return None
    role = message.get("role")
    if not isinstance(role, str) or role not in TYPES:
        return None
    body = {name: value for name, value in message.items() if name != "role"}
    blocks = body.get("content")
    if isinstance(blocks, list):
        if role == "assistant":
            return _assistant_drafts(body, blocks)
        if role == "user" and any(_is_kind(b, "tool_result") for b in blocks):
            return _result_drafts(body, blocks)
    body, had = with_content(body, None if role == "assistant" else "")
    return [(TYPES[role], noted(FORM, body, content=had))]


def _is_kind(block: Any, kind: str) -> bool:
    return isinstance(block, dict) and block.get("type") == kind


def _assistant_drafts(body: Payload, blocks: list[Any]) -> list[Draft]:
    parts = [b for b in blocks if not _is_kind(b, "tool_use")]
    calls = [(i, b) for i, b in enumerate(blocks) if _is_kind(b, "tool_use")]
    in_order = all(i >= len(parts) for i, _ in calls)
    drafts: list[Draft] = [(types.MESSAGE_ASSISTANT, body | {"content": parts})]
    for at, block in calls:
        payload = {"tool_call_id": block.get("id"), "name": block.get("name")}
        if "input" in block:
            payload["arguments"] = block["input"]
        notes = noted(
            FORM,
            payload,
            at=None if in_order else at,
            block=_rest(block, "id", "name", "input"),
            as_given=isinstance(block.get("input"), str) or None,
        )
        drafts.append((types.TOOL_CALL, notes))
    return drafts


def _result_drafts(body: Payload, blocks: list[Any]) -> list[Draft]:
    parts = [b for b in blocks if not _is_kind(b, "tool_result")]
    results = [(i, b) for i, b in enumerate(blocks) if _is_kind(b, "tool_result")]
    in_order = all(i < len(results) for i, _ in results)
    beside = {name: value for name, value in body.items() if name != "content"}
    drafts: list[Draft] = []
    for at, block in results:
        payload = {"tool_call_id": block.get("tool_use_id")}
        payload |= {n: block[n] for n in ("content", "is_error") if n in block}
        first = not drafts
        notes = noted(
            FORM,
            payload,
            place="first" if first else "next",
            at=None if in_order else at,
            block=_rest(block, "tool_use_id", "content", "is_error"),
            beside=beside if first and not parts else None,
        )
        drafts.append((types.TOOL_RESULT, notes))
    if parts:
        payload = beside | {"content": parts}
        drafts.append((types.MESSAGE_USER, noted(FORM, payload, place="next")))
    return drafts


def _rest(block: Payload, *names: str) -> Payload:
    return {n: value for n, value in block.items() if n not in (*names, "type")}


class _Message:
    """A message in the making: its blocks come in as several events."""

    def __init__(self, role: str, body: Payload, had: Any = None) -> None:
        self.message = {"role": role, **body}
        self.had = had
        self.inserted: list[tuple[int | None, Payload]] = []
        self.takes_results = False  # of another form, which does not say where it ends

    def take(self, event_type: str, body: Payload, notes: Payload) -> None:
        """Take an event that belongs to this message; its own first one too."""
        if event_type == types.TOOL_CALL:
            self.inserted.append(_use_block(body, notes))
        elif event_type == types.TOOL_RESULT:
            self.inserted.append(_result_block(body, notes))
        else:
            self.message |= body

    def finished(self) -> Payload:
        message = self.message
        restore_content(message, self.had)
        if self.inserted:
            message["content"] = self._blocks(_as_parts(message.get("content")))
        return message

    def _blocks(self, parts: list[Any]) -> list[Any]:
        loose = [block for at, block in self.inserted if at is None]
        is_user = self.message["role"] == "user"
        blocks = [*loose, *parts] if is_user else [*parts, *loose]
        placed = [(at, block) for at, block in self.inserted if at is not None]
        for at, block in sorted(placed, key=lambda item: item[0]):
            blocks.insert(at, block)
        return blocks


def _as_parts(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content if isinstance(content, list) else []


def write_messages(drafts: Iterable[Draft]) -> Iterator[Any]:
    """Yield the messages that events tell of; events that are no chat are passed over.

    Results that were not imported from this form go into one user message, as its
    providers demand, until something else follows.
    """
    current: _Message | None = None
    for event_type, payload in drafts:
        body, notes = split_notes(FORM, payload)
        is_whole = event_type == f"{FORM}.message" and "message" in payload
        begun = _begun_by(event_type, body, notes, current)
        if current is not None and (begun or is_whole):
            yield current.finished()
            current = None
        if is_whole:
            yield payload["message"]
        current = begun or current
        if current is not None and (event_type in CHAT or begun):
            current.take(event_type, body, notes)
    if current is not None:
        yield current.finished()


CHAT = (*types.MESSAGE_TYPES, types.TOOL_CALL, types.TOOL_RESULT)


def _begun_by(
    event_type: str, body: Payload, notes: Payload, current: _Message | None
) -> _Message | None:
    """The message that an event begins; None if it goes on with the current one."""
    if event_type == types.TOOL_CALL:
        if current is None or current.message["role"] != "assistant":
            return _Message("assistant", {"content": []})
    elif event_type == types.TOOL_RESULT:
        follows = notes.get("place") == "next" or (
            not notes and current is not None and current.takes_results
        )
        if current is None or not follows:
            begun = _Message("user", {**notes.get("beside", {}), "content": []})
            begun.takes_results = not notes
            return begun
    elif event_type in ROLES and (current is None or notes.get("place") != "next"):
        return _Message(ROLES[event_type], body, notes.get("content"))
    return None


def _use_block(body: Payload, notes: Payload) -> tuple[int | None, Payload]:
    block = {
        "type": "tool_use",
        "id": body.get("tool_call_id"),
        "name": body.get("name"),
        **notes.get("block", {}),
    }
    if "arguments" in body:
        block["input"] = _input(body["arguments"], notes)
    return notes.get("at"), block


def _input(arguments: Any, notes: Payload) -> Any:
    """Arguments of other forms are JSON text; here they are the object it spells."""
    if not isinstance(arguments, str) or notes.get("as_given"):
        return arguments
    try:
        value = codec.loads(arguments)
    except AppError:
        return arguments
    return value if isinstance(value, dict) else arguments


def _result_block(body: Payload, notes: Payload) -> tuple[int | None, Payload]:
    block = {
        "type": "tool_result",
        "tool_use_id": body.get("tool_call_id"),
        **notes.get("block", {}),
    }
    block |= {n: body[n] for n in ("content", "is_error") if n in body}
    return notes.get("at"), block
