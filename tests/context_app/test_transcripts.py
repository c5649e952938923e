"""The real transcripts: whole where there is room, valid where there is little."""

import json

import pytest

from context_app.units import NO_OUTPUT
from tests.context_app import legal
from tests.factories import make_session

pytestmark = pytest.mark.shared
BUDGETS = [2_000, 3_000, 5_000, 9_000]


@pytest.fixture(scope="module")
def transcripts(shared_dir):
    path = shared_dir / "transcripts" / "airline.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def events_of(messages):
    for message in messages:
        body = {name: v for name, v in message.items() if name != "role"}
        if message["role"] == "tool":
            yield {"type": "tool.result", "payload": body}
            continue
        called = body.pop("tool_calls", [])
        yield {"type": f"message.{message['role']}", "payload": body}
        for call in called:
            yield {
                "type": "tool.call",
                "payload": {
                    "tool_call_id": call["id"],
                    "name": call["function"]["name"],
                    "arguments": call["function"]["arguments"],
                },
            }


def test_at_full_budget_a_context_is_the_original(api, transcripts):
    assert len(transcripts) == 50
    for transcript in transcripts:
        session = make_session(api)
        session.append(*events_of(transcript["messages"]))
        found = session.get("/context", format="openai", budget_tokens=100_000)
        legal.check("openai", found)
        assert found["messages"] == [*originals(transcript)], transcript["id"]
        assert found["manifest"]["left_out"] == []
        assert found["manifest"]["shortened"] == []
        check_budgets(session, transcript)


def originals(transcript):
    """The messages themselves; but an empty result has a stand-in (EV-16)."""
    for message in transcript["messages"]:
        yield {**message, "content": NO_OUTPUT} if message["content"] == "" else message


def check_budgets(session, transcript):
    last = transcript["messages"][-1]["content"]
    for form in ("openai", "anthropic", "openai_responses"):
        for budget in BUDGETS:
            found = session.get("/context", format=form, budget_tokens=budget)
            legal.check(form, found)
            assert found["manifest"]["tokens"]["total"] <= budget
            if len(last) < 800:
                assert last.strip() in [t.strip() for t in legal.texts(found)]
