"""Messages for OpenAI's Chat Completions and Responses, and servers that speak them."""

from collections.abc import Iterator
from typing import Any

from context_app.forms.parts import (
    arguments_text,
    as_text,
    image_url,
    not_shown,
    safe_name,
    text_of,
)
from context_app.units import Message

# Kinds of parts that only one of the two takes as they are.
CHAT_KINDS = ("input_audio", "file")
RESPONSES_KINDS = ("input_file",)


def chat_messages(messages: list[Message]) -> list[Message]:
    return [_chat_message(message) for message in messages]


def _chat_message(message: Message) -> Message:
    role, content = message["role"], message["content"]
    match role:
        case "tool":
            return {
                "role": "tool",
                "tool_call_id": message["tool_call_id"],
                "name": safe_name(message["name"]),
                "content": as_text(content),
            }
        case "user":
            shown: Message = {"role": role, "content": _chat_content(content)}
        case _:
            shown = {
                "role": role,
                "content": None if content is None else as_text(content),
            }
    shown |= {n: message[n] for n in ("name", "refusal") if n in message}
    if "tool_calls" in message:
        shown["tool_calls"] = [_chat_call(call) for call in message["tool_calls"]]
    return shown


def _chat_content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    return [_chat_part(part) for part in content]


def _chat_part(part: Message) -> Message:
    if (text := text_of(part)) is not None:
        return {"type": "text", "text": text}
    if (url := image_url(part)) is not None:
        return {"type": "image_url", "image_url": {"url": url}}
    if part["type"] in CHAT_KINDS:
        return part
    return {"type": "text", "text": not_shown(part)}


def _chat_call(call: Message) -> Message:
    return {
        "id": call["id"],
        "type": "function",
        "function": {
            "name": safe_name(call["name"]),
            "arguments": arguments_text(call["arguments"]),
        },
    }


def response_items(messages: list[Message]) -> list[Message]:
    return [item for message in messages for item in _items(message)]


def _items(message: Message) -> Iterator[Message]:
    role, content = message["role"], message["content"]
    if role == "tool":
        yield {
            "type": "function_call_output",
            "call_id": message["tool_call_id"],
            "output": as_text(content),
        }
        return
    for thought in message.get("reasoning", []):
        if is_reasoning_item(thought):
            yield thought
    if content is not None:
        is_user = role == "user" and not isinstance(content, str)
        shown = [_input_part(p) for p in content] if is_user else as_text(content)
        yield {"role": role, "content": shown}
    for call in message.get("tool_calls", []):
        yield {
            "type": "function_call",
            "call_id": call["id"],
            "name": safe_name(call["name"]),
            "arguments": arguments_text(call["arguments"]),
        }


def is_reasoning_item(thought: Any) -> bool:
    """Whether it is what the provider itself gave, and takes again."""
    return isinstance(thought, dict) and thought.get("type") == "reasoning"


def _input_part(part: Message) -> Message:
    if (text := text_of(part)) is not None:
        return {"type": "input_text", "text": text}
    if (url := image_url(part)) is not None:
        return {"type": "input_image", "image_url": url}
    if part["type"] in RESPONSES_KINDS:
        return part
    return {"type": "input_text", "text": not_shown(part)}
