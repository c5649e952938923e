"""Chat messages in OpenAI's form, to events and back.

`user`, `system`, `developer` and `assistant` become message.*, the payload being the
message without its role. Each entry of a non-empty `tool_calls` becomes a tool.call
behind its message.assistant; `tool` becomes tool.result. The older `function_call` and
role `function` are a call and a result with the id `function:<name>`.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from agentstate import codec
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

FORM = "openai"
TYPES = {
    "user": types.MESSAGE_USER,
    "system": types.MESSAGE_SYSTEM,
    "developer": types.MESSAGE_SYSTEM,
    "assistant": types.MESSAGE_ASSISTANT,
}
ROLES = {
    types.MESSAGE_USER: "user",
    types.MESSAGE_SYSTEM: "system",
    types.MESSAGE_ASSISTANT: "assistant",
    types.TOOL_RESULT: "tool",
}


def read_message(message: Any) -> list[Draft]:
    """Return the events that one message becomes; at least one."""
    return checked(FORM, message, _drafts(message), write_messages)


def _drafts(message: Any) -> list[Draft] | None:
    if not isinstance(message, dict) or SOURCE in message:
        return None
    role = message.get("role")
    body = {name: value for name, value in message.items() if name != "role"}
    match role:
        case "user" | "system" | "developer":
            body, had = with_content(body, "")
            role_note = role if role == "developer" else None
            return [(TYPES[role], noted(FORM, body, content=had, role=role_note))]
        case "assistant":
            return _assistant_drafts(body)
        case "tool":
            return [(types.TOOL_RESULT, body)]
        case "function" if "tool_call_id" not in body:
            call_id = f"function:{body.get('name')}"
            payload = {"tool_call_id": call_id, **body}
            return [(types.TOOL_RESULT, noted(FORM, payload, role=role))]
    return None


def _assistant_drafts(body: Payload) -> list[Draft] | None:
    calls: list[Payload | None] = []
    if isinstance(body.get("tool_calls"), list) and body["tool_calls"]:
        calls = [_read_call(call) for call in body.pop("tool_calls")]
    elif isinstance(body.get("function_call"), dict):
        calls = [_read_function_call(body.pop("function_call"))]
    body, had = with_content(body, None)
    message = (types.MESSAGE_ASSISTANT, noted(FORM, body, content=had))
    made = [call for call in calls if call is not None]
    if len(made) < len(calls):
        return None
    return [message, *((types.TOOL_CALL, call) for call in made)]


def _read_call(call: Any) -> Payload | None:
    if not isinstance(call, dict):
        return None
    kind = call.get("type")
    inner = call.get(kind) if isinstance(kind, str) else None
    if not isinstance(inner, dict):
        return None
    payload: Payload = {"tool_call_id": call.get("id"), "name": inner.get("name")}
    if kind != "function":
        # A custom tool: its input is text, as arguments are. Kept as it was besides.
        if "input" in inner:
            payload["arguments"] = inner["input"]
        return noted(FORM, payload, call=call)
    return noted(
        FORM,
        payload | _arguments(inner),
        beside=_without(call, "id", "type", "function"),
        inside=_without(inner, "name", "arguments"),
        as_given=_is_unusual(inner),
    )


def _read_function_call(call: Payload) -> Payload:
    name = call.get("name")
    payload = {"tool_call_id": f"function:{name}", "name": name, **_arguments(call)}
    return noted(
        FORM,
        payload,
        legacy=True,
        inside=_without(call, "name", "arguments"),
        as_given=_is_unusual(call),
    )


def _arguments(inner: Payload) -> Payload:
    return {"arguments": inner["arguments"]} if "arguments" in inner else {}


def _is_unusual(inner: Payload) -> bool | None:
    """Arguments that are no string: they go back as they came, not as JSON text."""
    return not isinstance(inner.get("arguments", ""), str) or None


def _without(values: Payload, *names: str) -> Payload:
    return {name: value for name, value in values.items() if name not in names}


def write_messages(drafts: Iterable[Draft]) -> Iterator[Any]:
    """Yield the messages that events tell of; events that are no chat are passed over.

    A tool.call belongs to the message.assistant before it, whatever other events lie
    between; without one it gets an assistant message without content.
    """
    message: Any = None
    takes_calls = False
    for event_type, payload in drafts:
        if event_type == types.TOOL_CALL:
            if not takes_calls:
                if message is not None:
                    yield message
                message, takes_calls = {"role": "assistant", "content": None}, True
            _add_call(message, payload)
            continue
        if event_type == f"{FORM}.message" and "message" in payload:
            following = payload["message"]
            if message is not None:
                yield message
            yield following
            message, takes_calls = None, False
        elif event_type in ROLES:
            if message is not None:
                yield message
            message = _message(event_type, payload)
            takes_calls = event_type == types.MESSAGE_ASSISTANT
    if message is not None:
        yield message


def _message(event_type: str, payload: Payload) -> Payload:
    body, notes = split_notes(FORM, payload)
    message = {"role": notes.get("role", ROLES[event_type]), **body}
    if message["role"] == "function":
        message.pop("tool_call_id", None)
    restore_content(message, notes.get("content"))
    return message


def _add_call(message: Payload, payload: Payload) -> None:
    body, notes = split_notes(FORM, payload)
    inner: Payload = {"name": body.get("name"), **notes.get("inside", {})}
    if "arguments" in body:
        given = body["arguments"]
        as_given = isinstance(given, str) or notes.get("as_given")
        inner["arguments"] = given if as_given else codec.dumps(given)
    if notes.get("legacy"):
        message["function_call"] = inner
        return
    call = notes.get("call") or {
        "id": body.get("tool_call_id"),
        "type": "function",
        "function": inner,
        **notes.get("beside", {}),
    }
    message["tool_calls"] = [*(message.get("tool_calls") or []), call]
