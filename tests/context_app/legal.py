"""What providers demand of a request, judged as strictly as the strictest of them.

Written against their documentation, without any of our own code.
"""

import json
import re
from typing import Any

ID = re.compile(r"[a-zA-Z0-9_-]+\Z")
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")


def check(form: str, context: Any) -> None:
    messages = context["messages"]
    json.dumps(plain(messages))
    {
        "openai": check_openai,
        "neutral": check_neutral,
        "anthropic": check_anthropic,
        "openai_responses": check_responses,
    }[form](messages)
    if form == "anthropic":
        assert context["system"] is None or context["system"].strip()
    else:
        assert context["system"] is None


def plain(value: Any) -> Any:
    """Decimals, as our codec reads them, are no JSON of Python's own."""
    return json.loads(json.dumps(value, default=str))


def check_content(content: Any) -> None:
    if isinstance(content, str):
        assert content.strip(), "empty text"
        return
    assert isinstance(content, list) and content, content
    for part in content:
        if part["type"] in ("text", "input_text", "output_text"):
            assert part["text"].strip(), part


def check_openai(messages: list[Any]) -> None:
    open_ids: list[str] = []
    for message in messages:
        role = message["role"]
        assert role in ("system", "developer", "user", "assistant", "tool"), message
        if role == "tool":
            assert message["tool_call_id"] in open_ids, "a result without its call"
            open_ids.remove(message["tool_call_id"])
            assert isinstance(message["content"], str)
            check_content(message["content"])
            continue
        assert not open_ids, f"calls without results: {open_ids}"
        assert set(message) <= {"role", "content", "name", "refusal", "tool_calls"}
        calls = message.get("tool_calls")
        if message["content"] is not None or not calls:
            check_content(message["content"])
        if calls is not None:
            assert role == "assistant" and calls
            open_ids = [call["id"] for call in calls]
            assert len(set(open_ids)) == len(open_ids), "an id twice in one message"
            for call in calls:
                assert call["type"] == "function"
                assert NAME.match(call["function"]["name"]), call
                assert isinstance(call["function"]["arguments"], str)
    assert not open_ids


def check_neutral(messages: list[Any]) -> None:
    open_ids: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in open_ids
            open_ids.remove(message["tool_call_id"])
            check_content(message["content"])
            continue
        assert not open_ids
        open_ids = [call["id"] for call in message.get("tool_calls", [])]
        if message["content"] is not None or not open_ids:
            check_content(message["content"])
    assert not open_ids


def check_anthropic(messages: list[Any]) -> None:
    seen: set[str] = set()
    expected = "user"
    open_ids: list[str] = []
    for message in messages:
        assert message["role"] == expected, "roles must alternate"
        expected = "assistant" if expected == "user" else "user"
        blocks = message["content"]
        assert isinstance(blocks, list) and blocks
        results = [b for b in blocks if b["type"] == "tool_result"]
        assert blocks[: len(results)] == results, "results come first"
        assert sorted(b["tool_use_id"] for b in results) == sorted(open_ids)
        for block in blocks:
            check_block(message["role"], block)
        uses = [b for b in blocks if b["type"] == "tool_use"]
        assert blocks[len(blocks) - len(uses) :] == uses, "uses come last"
        open_ids = [block["id"] for block in uses]
        assert len(set(open_ids)) == len(open_ids) and not seen & set(open_ids)
        seen |= set(open_ids)
    assert not open_ids


def check_block(role: str, block: Any) -> None:
    kind = block["type"]
    if kind == "text":
        assert block["text"].strip()
    elif kind == "tool_use":
        assert role == "assistant"
        assert ID.match(block["id"]) and NAME.match(block["name"]), block
        assert isinstance(block["input"], dict)
    elif kind == "tool_result":
        assert role == "user"
        check_content(block["content"])
    else:
        assert kind in ("image", "document", "thinking", "redacted_thinking")


def check_responses(items: list[Any]) -> None:
    called: list[str] = []
    answered: list[str] = []
    for item in items:
        match item.get("type", "message"):
            case "function_call":
                assert item["call_id"] not in called
                assert isinstance(item["arguments"], str)
                called.append(item["call_id"])
            case "function_call_output":
                assert item["call_id"] in called
                assert item["call_id"] not in answered
                check_content(item["output"])
                answered.append(item["call_id"])
            case "message":
                assert sorted(called) == sorted(answered), "open calls before it"
                assert item["role"] in ("system", "developer", "user", "assistant")
                check_content(item["content"])
            case "reasoning":
                pass
    assert sorted(called) == sorted(answered)


def texts(value: Any) -> list[str]:
    """Every text in a context, whatever its form."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [t for item in value.values() for t in texts(item)]
    if isinstance(value, list):
        return [t for item in value for t in texts(item)]
    return []
