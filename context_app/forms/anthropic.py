"""Messages for Anthropic: roles alternate, results stand first, ids are unique."""

from collections.abc import Iterable
from typing import Any

from context_app.forms.parts import (
    DATA_URL,
    arguments_object,
    as_text,
    image_url,
    not_shown,
    safe_name,
    text_of,
)
from context_app.units import Message

THOUGHT_KINDS = ("thinking", "redacted_thinking")
NO_USER_YET = "(The conversation begins with the assistant.)"


def message_blocks(messages: list[Message]) -> list[Message]:
    """Return one unit's messages, not yet joined with their neighbours."""
    return [_message(message) for message in messages]


def _message(message: Message) -> Message:
    match message["role"]:
        case "tool":
            return {"role": "user", "content": [_result_block(message)]}
        case "assistant":
            return {"role": "assistant", "content": [*_assistant_blocks(message)]}
        case "system":
            text = f"<system>{as_text(message['content'])}</system>"
            return {"role": "user", "content": [_text_block(text)]}
    content = message["content"]
    if isinstance(content, str):
        return {"role": "user", "content": [_text_block(content)]}
    return {"role": "user", "content": [_block(part) for part in content]}


def _assistant_blocks(message: Message) -> Iterable[Message]:
    """Signed thoughts first, as the provider demands them; unsigned it refuses."""
    thoughts = [t for found in message.get("reasoning", []) for t in _listed(found)]
    parts = message["content"]
    if isinstance(parts, str):
        parts = [_text_block(parts)]
    yield from (block for block in [*thoughts, *(parts or [])] if _is_thought(block))
    for part in parts or []:
        if not _is_thought(part):
            yield _text_block(as_text([part]))
    for call in message.get("tool_calls", []):
        yield {
            "type": "tool_use",
            "id": safe_name(call["id"], 200),
            "name": safe_name(call["name"]),
            "input": arguments_object(call["arguments"]),
        }


def holds_thought(thought: Any) -> bool:
    return any(_is_thought(block) for block in _listed(thought))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_thought(block: Any) -> bool:
    return (
        isinstance(block, dict)
        and block.get("type") in THOUGHT_KINDS
        and ("signature" in block or "data" in block)
    )


def _result_block(message: Message) -> Message:
    content = message["content"]
    block: Message = {
        "type": "tool_result",
        "tool_use_id": safe_name(message["tool_call_id"], 200),
        "content": content
        if isinstance(content, str)
        else [_block(part) for part in content],
    }
    if message.get("is_error"):
        block["is_error"] = True
    return block


def _text_block(text: str) -> Message:
    return {"type": "text", "text": text}


def _block(part: Message) -> Message:
    if (text := text_of(part)) is not None:
        return _text_block(text)
    if (url := image_url(part)) is not None:
        if data := DATA_URL.match(url):
            source = {"type": "base64", "media_type": data[1], "data": data[2]}
            return {"type": "image", "source": source}
        return {"type": "image", "source": {"type": "url", "url": url}}
    if part["type"] == "document":
        return part
    return _text_block(not_shown(part))


def joined(messages: Iterable[Message]) -> list[Message]:
    """Join messages of one role that follow one another; the user begins."""
    found: list[Message] = []
    for message in messages:
        if found and found[-1]["role"] == message["role"]:
            found[-1]["content"] += message["content"]
        else:
            found.append({**message, "content": [*message["content"]]})
    if found and found[0]["role"] != "user":
        found.insert(0, {"role": "user", "content": [_text_block(NO_USER_YET)]})
    return found
