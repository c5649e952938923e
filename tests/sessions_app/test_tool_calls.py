"""The projection of tool calls: which are open, now and at any seq."""

from sessions_app.models import Event, ToolCall
from tests.factories import answers, calls, make_session, says


def test_ev_13_a_repeated_id_is_paired_by_turn(session):
    session.append(calls("b9x"), answers("b9x", "4C"), calls("b9x"), says("well?"))
    assert session.open_calls() == [(3, "b9x")]
    assert session.open_calls(1) == [(1, "b9x")]
    assert session.open_calls(2) == []


def test_a_result_answers_the_latest_open_call_of_its_id(session):
    session.append(calls("x"), calls("x"), answers("x"))
    assert session.open_calls() == [(1, "x")]
    session.append(answers("x"))
    assert session.open_calls() == []
    assert session.open_calls(3) == [(1, "x")]


def test_parallel_calls_in_one_batch_are_paired_each(session):
    session.append(calls("a"), calls("b"), calls("c"), answers("b"), answers("a"))
    assert session.open_calls() == [(3, "c")]
    assert session.open_calls(3) == [(1, "a"), (2, "b"), (3, "c")]


def test_ev_16_an_empty_a_null_and_no_content_are_three_things(session):
    session.append(calls("c1"), calls("c2"), calls("c3"))
    nothing = answers("c3")
    del nothing["payload"]["content"]
    assert session.append(answers("c1", ""), answers("c2", None), nothing).status_code
    results = session.payloads(types="tool.result")
    assert results[0]["content"] == ""
    assert results[1]["content"] is None
    assert "content" not in results[2]
    assert session.open_calls() == []


def test_ev_17_forty_parallel_calls_are_81_records_everywhere(session):
    ids = [f"c{n:02}" for n in range(1, 41)]
    session.append(
        {"type": "message.assistant", "payload": {"content": None}},
        *[calls(id_) for id_ in ids],
    )
    for number, id_ in enumerate(ids):
        assert len(session.open_calls()) == 40 - number
        session.append(answers(id_))
    assert [e["seq"] for e in session.events(limit=1000)] == list(range(1, 82))
    feed = session.api.get(
        "/api/v1/events", params={"session": session.id, "limit": 1000}
    ).json["items"]
    assert [e["seq"] for e in feed] == list(range(82))  # with the session's creation
    replayed = session.get("/replay", at_seq=81, limit=1000)
    assert len(replayed["conversation"]) == 81
    assert ToolCall.objects.filter(session_id=session.id).count() == 40
    assert Event.objects.filter(session_id=session.id).count() == 82
    assert session.open_calls() == []


def test_rp_01_an_interrupted_call_stays_open_and_invents_nothing(session):
    session.append(calls("t1"), calls("t2"), answers("t1", "ok"), says("go on"))
    for _ in range(2):
        assert session.open_calls() == [(2, "t2")]
    assert len(session.events()) == 4


def test_rp_02_a_call_that_waits_for_a_person_is_never_repaired_away(session, clock):
    session.append(calls("ask_1", "ask_user", awaiting="human"))
    clock.advance(seconds=86_400)
    [call] = session.get("/replay", at_seq=1)["open_tool_calls"]
    assert call == {
        "seq": 1,
        "tool_call_id": "ask_1",
        "name": "ask_user",
        "awaiting": "human",
    }
    session.append(answers("ask_1", "human said yes"))
    assert session.open_calls() == []
    assert [p["content"] for p in session.payloads(types="tool.result")] == [
        "human said yes"
    ]


def test_rp_03_a_real_result_replaces_a_stand_in_and_ghosts_pair_with_nothing(session):
    session.append(calls("k1"))
    session.append("hello?")
    session.append(answers("k1", "interrupted", synthetic=True))
    assert session.open_calls() == []
    session.append(answers("k1", "REAL"))
    session.append(answers("ghost", "no such call"))
    session.append(answers("k1", "late again", synthetic=True))
    assert session.open_calls() == []
    [call] = ToolCall.objects.filter(session_id=session.id)
    assert (call.result_seq, call.result_synthetic) == (4, False)
    assert session.open_calls(2) == [(1, "k1")]
    assert session.open_calls(3) == []


def test_rp_11_an_answered_question_stays_answered_in_every_replay(session):
    session.append(
        calls("cf_1", "confirm", awaiting="human"), answers("cf_1", "approved")
    )
    session.append({"type": "acme.run_finished", "payload": {}})
    for at_seq in (2, 3):
        assert session.open_calls(at_seq) == []
    assert session.open_calls(1) == [(1, "cf_1")]


def test_the_same_result_sent_twice_by_id_closes_one_call(session):
    from uuid import uuid4

    result = answers("x") | {"id": str(uuid4())}
    session.append(calls("x"), calls("x"))
    session.append(result)
    session.append(result)
    assert session.open_calls() == [(1, "x")]


def test_calls_are_paired_within_their_session(session, api):
    other = make_session(api)
    session.append(calls("x"))
    other.append(answers("x"))
    assert session.open_calls() == [(1, "x")]
    assert other.open_calls() == []
