"""The cases of the area replay that end in a context, each named by its id."""

import pytest

from context_app.units import AWAITING_HUMAN, INTERRUPTED, NO_OUTPUT
from tests.context_app import legal
from tests.factories import answers, calls, says

FORMS = ["neutral", "openai", "openai_responses", "anthropic"]


def context(session, form="openai", **params):
    found = session.get("/context", format=form, **params)
    legal.check(form, found)
    return found


def said(text):
    return {"type": "message.assistant", "payload": {"content": text}}


def results(found):
    return {
        m["tool_call_id"]: m["content"]
        for m in found["messages"]
        if m["role"] == "tool"
    }


def roles(found):
    return [message["role"] for message in found["messages"]]


@pytest.mark.parametrize("form", FORMS)
def test_rp_01_an_interrupted_call_gets_one_stand_in(session, form):
    session.append(calls("t1"), calls("t2"), answers("t1", "ok"), "go on")
    first = context(session, form)
    assert first == context(session, form)
    assert len(session.events()) == 4
    shown = legal.texts(first["messages"])
    assert shown.count(INTERRUPTED) == 1
    assert shown.index("ok") < shown.index(INTERRUPTED) < shown.index("go on")
    assert first["manifest"]["open_calls"] == [
        {
            "seq": 2,
            "tool_call_id": "t2",
            "name": "search",
            "status": "interrupted",
            "shown": "stand_in",
        }
    ]


def test_rp_01_results_follow_the_calls_they_answer(session):
    session.append(calls("t1"), calls("t2"), answers("t1", "ok"), "go on")
    found = context(session)
    assert roles(found) == ["assistant", "tool", "tool", "user"]
    assert results(found) == {"t1": "ok", "t2": INTERRUPTED}


@pytest.mark.parametrize("form", FORMS)
def test_rp_02_a_call_that_waits_for_a_human_is_not_repaired(session, form, clock):
    session.append(says("clean up"), calls("ask_1", "ask_user", awaiting="human"))
    clock.advance(seconds=86_400)
    waiting = context(session, form)
    assert AWAITING_HUMAN in legal.texts(waiting["messages"])
    assert waiting["manifest"]["open_calls"][0]["status"] == "awaiting_human"
    session.append(answers("ask_1", "human said yes"))
    answered = legal.texts(context(session, form)["messages"])
    assert answered.count("human said yes") == 1
    assert AWAITING_HUMAN not in answered
    assert len(session.events()) == 3


def test_rp_02_it_survives_however_small_the_budget(session):
    session.append(calls("ask_1", "ask_user", awaiting="human"))
    session.append(*[f"message {n} " + "word " * 50 for n in range(100)])
    found = context(session, budget_tokens=500)
    assert results(found) == {"ask_1": AWAITING_HUMAN}
    session.append(answers("ask_1", "yes"))
    assert results(context(session, budget_tokens=500)) == {"ask_1": "yes"}


def test_rp_03_one_real_result_next_to_its_call(session):
    session.append(calls("k1", "f"))
    session.append("hello?")
    session.append(answers("k1", "interrupted", synthetic=True))
    assert results(context(session)) == {"k1": "interrupted"}
    session.append(answers("k1", "REAL"))
    session.append(answers("ghost", "no such call"))
    found = context(session)
    assert roles(found) == ["assistant", "tool", "user"]
    assert results(found) == {"k1": "REAL"}
    assert found == context(session)
    assert found["manifest"]["not_shown"] == [
        {"seq": 3, "reason": "no_open_call"},
        {"seq": 5, "reason": "no_open_call"},
    ]
    assert results(context(session, at_seq=3)) == {"k1": "interrupted"}
    assert results(context(session, at_seq=2)) == {"k1": INTERRUPTED}


@pytest.mark.parametrize("form", FORMS)
def test_ev_13_a_repeated_id_is_paired_by_turn(session, form):
    session.append(
        calls("b9x", "weather"),
        answers("b9x", "4C"),
        calls("b9x", "weather"),
        "well?",
    )
    found = context(session, form)
    assert [call["seq"] for call in found["manifest"]["open_calls"]] == [3]
    shown = legal.texts(found["messages"])
    assert shown.index("4C") < shown.index(INTERRUPTED) < shown.index("well?")


def test_ev_13_ids_are_only_changed_where_they_must_be(session):
    session.append(calls("b"), answers("b", "1"), calls("b"), answers("b", "2"))
    ids = [m["tool_calls"][0]["id"] for m in context(session)["messages"][::2]]
    assert ids == ["b", "b"]
    blocks = context(session, "anthropic")["messages"]
    uses = [b["id"] for m in blocks for b in m["content"] if b["type"] == "tool_use"]
    assert uses == ["b-1", "b"]


def test_parallel_calls_with_one_id_are_told_apart(session):
    session.append(calls("x"), calls("x"), answers("x", "second"))
    for form in FORMS:
        context(session, form)
    assert list(results(context(session)).values()) == [INTERRUPTED, "second"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "empty", ["", "  \n", None, [], [{"type": "text", "text": ""}]]
)
def test_ev_16_an_empty_result_has_a_stand_in(session, form, empty):
    session.append(calls("c9", "touch_file"), answers("c9", empty), "thanks")
    assert NO_OUTPUT in legal.texts(context(session, form)["messages"])
    assert session.payloads()[1]["content"] == empty


def test_ev_16_an_absent_result_has_it_too(session):
    result = {"type": "tool.result", "payload": {"tool_call_id": "c9"}}
    session.append(calls("c9"), result)
    assert results(context(session)) == {"c9": NO_OUTPUT}
    assert "content" not in session.payloads()[1]


@pytest.mark.parametrize("form", FORMS)
def test_empty_messages_are_left_out_and_named(session, form):
    session.append(says("  "), said(None), said(""), "hello", said("hi"))
    found = context(session, form)
    assert found["manifest"]["seqs"] == [4, 5]
    assert [each["seq"] for each in found["manifest"]["not_shown"]] == [1, 2, 3]


def test_rp_12_several_runs_in_one_session(session):
    session.append(
        "a",
        {"type": "app.run_failed", "payload": {"error": "timeout"}},
        said("b"),
    )
    assert roles(context(session)) == ["user", "assistant"]
    for seq in range(4):
        found = context(session, at_seq=seq)
        assert found["manifest"]["at_seq"] == seq


def test_an_empty_session_has_an_empty_context(session):
    for form in FORMS:
        assert context(session, form)["messages"] == []


def test_a_seq_that_the_log_has_not_reached_is_not_found(session):
    answer = session.api.get(f"{session.url}/context", params={"at_seq": 1})
    assert (answer.status_code, answer.json["code"]) == (404, "seq_not_found")
