"""The forms that a context is given in: neutral, and those of providers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from context_app.forms import anthropic, openai
from context_app.forms.parts import as_text
from context_app.units import Message


@dataclass(frozen=True)
class Form:
    """How neutral messages become a provider's.

    `render` takes the messages of one unit, so that what a unit costs can be counted
    before it is chosen. `ids_are_global`: an id may stand once in the whole request.
    `system_apart`: instructions are no message, but a text beside them.
    """

    name: str
    render: Callable[[list[Message]], list[Message]]
    shows_thought: Callable[[Any], bool]
    ids_are_global: bool = False
    system_apart: bool = False
    join: Callable[[Iterable[Message]], list[Message]] = list


def neutral_messages(messages: list[Message]) -> list[Message]:
    return [
        {name: value for name, value in message.items() if name != "call_seq"}
        for message in messages
    ]


FORMS = {
    form.name: form
    for form in (
        Form("neutral", neutral_messages, lambda thought: True),
        Form("openai", openai.chat_messages, lambda thought: False),
        Form(
            "openai_responses",
            openai.response_items,
            openai.is_reasoning_item,
            ids_are_global=True,
        ),
        Form(
            "anthropic",
            anthropic.message_blocks,
            anthropic.holds_thought,
            ids_are_global=True,
            system_apart=True,
            join=anthropic.joined,
        ),
    )
}


def with_own_ids(messages: list[Message], repeated: set[str] | None) -> list[Message]:
    """Give calls whose id is used before, here or in `repeated`, one of their own.

    The new id is made of the old one and the call's seq: it stays the same from one
    context to the next. None for `repeated` renames all, the most that ids can cost.
    """
    used: set[str] = set(repeated or ())
    renamed: dict[int, str] = {}
    for message in messages:
        for call in message.get("tool_calls", []):
            if repeated is None or call["id"] in used:
                renamed[call["seq"]] = f"{call['id']}-{call['seq']}"
            used.add(call["id"])
    return [_renamed(message, renamed) for message in messages] if renamed else messages


def unique_ids(groups: list[list[Message]]) -> list[Message]:
    """Make ids unique over all units; the newest use of an id keeps it."""
    used: set[str] = set()
    found: list[list[Message]] = []
    for group in reversed(groups):
        found.append(with_own_ids(group, used))
        used |= {c["id"] for m in found[-1] for c in m.get("tool_calls", [])}
    return [message for group in reversed(found) for message in group]


def _renamed(message: Message, ids: dict[int, str]) -> Message:
    if message.get("call_seq") in ids:
        return {**message, "tool_call_id": ids[message["call_seq"]]}
    if "tool_calls" not in message:
        return message
    calls = [{**c, "id": ids.get(c["seq"], c["id"])} for c in message["tool_calls"]]
    return {**message, "tool_calls": calls}


def system_text(messages: Iterable[Message]) -> str:
    return "\n\n".join(as_text(message["content"]) for message in messages)


__all__ = ["FORMS", "Form", "system_text", "unique_ids", "with_own_ids"]
