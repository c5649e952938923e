"""The real transcripts: whole where there is room, valid where there is little."""

import json
import random

import pytest

from context_app.units import NO_OUTPUT
from tests.context_app import legal
from tests.context_app.test_context_properties import (
    FORMS,
    PINNED,
    check_open_calls,
    check_truth,
    fitting_context,
)
from tests.factories import make_session

pytestmark = pytest.mark.shared
BUDGETS = [2_000, 5_000]


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


def test_at_any_budget_it_is_truthful_and_keeps_what_is_pinned(
    subject_api, transcripts
):
    """As of generated logs: pinned facts, open calls, all accounted for, all forms."""
    drawn = random.Random(2_000)
    for number, transcript in enumerate(transcripts):
        session = make_session(subject_api, subject="ann")
        # Cut somewhere: then the last call may be open, as in life.
        events = [*events_of(transcript["messages"])]
        session.append(*events[: drawn.randint(len(events) // 2, len(events))])
        form = FORMS[number % len(FORMS)]
        for budget in (2_000, drawn.randint(100, 12_000)):
            found = fitting_context(session, budget, form)
            legal.check(form, found)
            assert PINNED in "\n".join(legal.texts(found["messages"]))
            check_open_calls(session, found)
            check_truth(session, found, form)


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
