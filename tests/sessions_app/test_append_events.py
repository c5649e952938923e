"""POST /sessions/{id}/events: the append."""

import threading
from uuid import uuid4

import pytest
from django.db import connection

from sessions_app.models import Event
from tests.factories import (
    MISSING,
    SESSIONS,
    answers,
    calls,
    error_of,
    fetch,
    key_header,
    make_session,
    says,
)
from tests.fixtures import Api
from tests.queries import CallQueries


def test_numbers_run_from_one_without_gaps(session):
    first = session.append("a", "b")
    assert first.status_code == 201
    assert [e["seq"] for e in first.json["events"]] == [1, 2]
    assert first.json["last_seq"] == 2
    assert session.append("c").json["last_seq"] == 3
    listed = session.events()
    assert [e["seq"] for e in listed] == [1, 2, 3]
    assert [e["id"] for e in listed[:2]] == [e["id"] for e in first.json["events"]]


def test_an_event_comes_back_as_it_was_sent(session, make_key):
    sent = {
        "id": str(uuid4()),
        "type": "acme.ticket_opened",
        "payload": {"n": 1.50, "deep": [None, {"x": ""}], "text": "ü\0\U0001f600"},
        "occurred_at": "2026-03-01T10:00:05.123456+02:00",
        "run": str(uuid4()),
        "step": str(uuid4()),
    }
    session.append(sent)
    [event] = session.events()
    assert event.pop("created_at").endswith("Z")
    assert event.pop("actor") == f"key:{session.api.key.split('_')[1]}"
    assert event == sent | {"seq": 1, "occurred_at": "2026-03-01T08:00:05.123456Z"}


@pytest.mark.parametrize(
    ("event", "path", "code"),
    [
        ({"type": "message.user"}, "payload", "required"),
        ({"payload": {}}, "type", "required"),
        ({"type": 5, "payload": {}}, "type", "invalid_type"),
        ({"type": "Upper.case", "payload": {}}, "type", "invalid_type_name"),
        ({"type": "undotted", "payload": {}}, "type", "invalid_type_name"),
        ({"type": "a." + "b" * 100, "payload": {}}, "type", "invalid_type_name"),
        ({"type": "acme.x\n", "payload": {}}, "type", "invalid_type_name"),
        ({"type": "acme.x", "payload": []}, "payload", "invalid_type"),
        ({"type": "acme.x", "payload": None}, "payload", "invalid_type"),
        ({"type": "acme.x", "payload": {}, "text": 1}, "text", "unknown_field"),
        ({"type": "acme.x", "payload": {}, "id": "e-1"}, "id", "invalid_uuid"),
        ({"type": "acme.x", "payload": {}, "id": 7}, "id", "invalid_uuid"),
        ({"type": "acme.x", "payload": {}, "run": "r-1"}, "run", "invalid_uuid"),
        ({"type": "acme.x", "payload": {}, "step": []}, "step", "invalid_uuid"),
        (
            {"type": "acme.x", "payload": {}, "occurred_at": "2026-03-01T10:00:00"},
            "occurred_at",
            "needs_offset",
        ),
        (
            {
                "type": "acme.x",
                "payload": {},
                "occurred_at": "0001-01-01T00:00:00+10:00",
            },
            "occurred_at",
            "out_of_range",
        ),
        (
            {"type": "acme.x", "payload": {}, "occurred_at": 1772359200},
            "occurred_at",
            "invalid",
        ),
        ({"type": "message.user", "payload": {}}, "payload.content", "required"),
        (
            {"type": "message.user", "payload": {"content": None}},
            "payload.content",
            "invalid_type",
        ),
        (
            {"type": "message.assistant", "payload": {"content": {"a": 1}}},
            "payload.content",
            "invalid_type",
        ),
        (
            {"type": "message.user", "payload": {"content": ["text"]}},
            "payload.content[0]",
            "invalid_type",
        ),
        (
            {"type": "message.user", "payload": {"content": [{"text": "x"}]}},
            "payload.content[0].type",
            "required",
        ),
        (calls("x", name=None), "payload.name", "invalid_type"),
        (calls("x" * 201), "payload.tool_call_id", "too_long"),
        (calls("a\0b"), "payload.tool_call_id", "null_character"),
        (calls("x", awaiting="robot"), "payload.awaiting", "invalid_choice"),
        (answers("x", is_error="no"), "payload.is_error", "invalid_type"),
        (
            {"type": "tool.result", "payload": {"content": "x"}},
            "payload.tool_call_id",
            "required",
        ),
    ],
)
def test_a_wrong_event_is_refused_with_its_path_and_stores_nothing(
    session, event, path, code
):
    answer = session.append("good", event, "good too")
    assert error_of(answer) == (422, "invalid", f"events[1].{path}")
    assert answer.json["errors"][0]["code"] == code
    assert session.events() == []
    assert session.append("next").json["last_seq"] == 1


@pytest.mark.parametrize(
    "name",
    [
        "state.changed",
        "run.started",
        "step.done",
        "memory.revised",
        "session.closed",
        "handoff.made",
        "context.compacted",
        "artifact.stored",
        "state.anything",
    ],
)
def test_what_the_server_alone_writes_is_refused(session, name):
    answer = session.append({"type": name, "payload": {}})
    assert error_of(answer) == (422, "invalid", "events[0].type")
    assert answer.json["errors"][0]["code"] == "reserved_type"


def test_db_05_records_without_what_readers_rely_on_are_refused(session):
    """What is accepted is kept as it is; odd rows never get into the log."""
    for odd in (
        {"type": "tool.call", "payload": {"tool_call_id": "z", "arguments": None}},
        {"type": "custom.unknown", "foo": 1},
        {"type": "message.assistant", "payload": {}},
        {"type": "message.assistant", "payload": "text"},
    ):
        assert session.append(odd).status_code == 422
    kept = [
        calls("z", name="f", arguments=None),
        {"type": "custom.unknown", "payload": {"foo": 1}},
        answers("z", content=None),
    ]
    session.append(*kept)
    assert session.payloads() == [event["payload"] for event in kept]


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ([], "$"),
        ({}, "events"),
        ({"events": {}}, "events"),
        ({"events": []}, "events"),
        ({"events": [says("x")] * 1001}, "events"),
        ({"events": [5]}, "events[0]"),
        ({"events": [says("x")], "event": 1}, "event"),
        ({"events": [says("x")], "expected_seq": "0"}, "expected_seq"),
        ({"events": [says("x")], "expected_seq": -1}, "expected_seq"),
        ({"events": [says("x")], "expected_seq": 2**63}, "expected_seq"),
        ({"events": [says("x")], "expected_seq": True}, "expected_seq"),
        ({"events": [says("x")], "expected_seq": 0.0}, "expected_seq"),
    ],
)
def test_a_wrong_body_is_422_with_its_path(session, body, path):
    answer = session.api.post(f"{session.url}/events", body)
    assert error_of(answer) == (422, "invalid", path)
    assert session.events() == []


def test_a_thousand_events_are_one_batch(session):
    answer = session.append(*[str(n) for n in range(1000)])
    assert answer.json["last_seq"] == 1000
    assert session.texts() == [str(n) for n in range(1000)]


def test_a_payload_over_the_limit_is_413_and_stores_nothing(session, settings):
    settings.EVENT_PAYLOAD_MAX_BYTES = 1000
    answer = session.append("small", "x" * 1000)
    assert error_of(answer) == (413, "payload_too_large", "events[1].payload")
    assert session.events() == []


def test_expected_seq_is_the_last_number_seen(session):
    session.append("a", expected_seq=0)
    late = session.append("b", expected_seq=0)
    assert late.status_code == 409
    assert late.json["code"] == "seq_conflict"
    assert (late.json["expected"], late.json["actual"]) == (0, 1)
    ahead = session.append("b", expected_seq=5)
    assert (ahead.json["code"], ahead.json["actual"]) == ("seq_conflict", 1)
    assert session.append("b", expected_seq=1).json["last_seq"] == 2
    assert session.texts() == ["a", "b"]


def test_a_closed_session_takes_nothing(session):
    session.api.post(f"{session.url}/close")
    answer = session.append("late")
    assert (answer.status_code, answer.json["code"]) == (409, "session_closed")
    assert session.get()["last_seq"] == 1


def test_ev_18_no_session_springs_into_being(api, project):
    for method, path, body in (
        ("POST", "/events", {"events": [says("hi")]}),
        ("PUT", "/state", {"state": {}, "expected_version": 0}),
        ("PATCH", "/state", {"merge": {}, "expected_version": 0}),
        ("POST", "/close", None),
        ("POST", "/reopen", None),
        ("POST", "/fork", {"at_seq": 0}),
        ("POST", "/lock", None),
    ):
        answer = api.request(method, f"{SESSIONS}/{MISSING}{path}", json=body)
        assert (answer.status_code, answer.json["code"]) == (404, "session_not_found")
        answer = api.request(method, f"{SESSIONS}/s-does-not-exist{path}", json=body)
        assert (answer.status_code, answer.json["code"]) == (404, "not_found")
    assert not Event.objects.filter(project_id=project.id).exists()


def test_ev_07_order_is_a_number_not_a_time(session, clock):
    """Three events of one clock tick, after the table has been written anew."""
    session.append(
        {"type": "reasoning", "payload": {"content": "think"}},
        {"type": "message.assistant", "payload": {"content": "answer"}},
        says("thanks"),
    )
    assert len({event["created_at"] for event in session.events()}) == 1
    expected = ["think", "answer", "thanks"]
    for command in (
        "VACUUM FULL agent_events",
        "CLUSTER agent_events USING event_feed",
    ):
        fetch(command)
        for _ in range(20):
            assert session.texts() == expected
            assert [p["content"] for p in session.payloads(last=3)] == expected


def test_ev_09_no_clock_orders_anything(session, clock):
    session.append(says("first", occurred_at="2026-03-01T10:00:05Z"))
    clock.advance(seconds=-60)
    session.append(says("second", occurred_at="2026-03-01T10:00:01Z"))
    session.append(says("third", occurred_at="1999-01-01T00:00:00Z"))
    assert session.texts() == ["first", "second", "third"]
    events = session.events()
    assert [e["seq"] for e in events] == [1, 2, 3]
    assert events[2]["occurred_at"] == "1999-01-01T00:00:00.000000Z"
    assert events[1]["created_at"] < events[0]["created_at"]


def test_ev_21_what_no_reader_knows_comes_back_whole(session):
    sent = [
        answers(
            "v1", {"errors": [{"loc": ["qty"], "msg": "too small"}]}, is_error=True
        ),
        {
            "type": "provider.special",
            "payload": {"tool_call_id": "v1", "payload": {"k": [1, {"deep": None}]}},
        },
        {
            "type": "message.assistant",
            "payload": {
                "content": [
                    {"type": "thinking", "id": "th_1", "signature": "c2ln"},
                    {"type": "text", "text": "ok", "new_field": "keep me too"},
                ],
                "usage": {"tokens": 12},
            },
        },
    ]
    session.append(*sent)
    read = session.events()
    assert [(e["type"], e["payload"]) for e in read] == [
        (e["type"], e["payload"]) for e in sent
    ]


def test_the_append_is_one_round_trip(session):
    session.append("the key is known after this")
    own = str(uuid4())
    for events, options in (
        (["plain"], {}),
        (["plain"] * 100, {}),
        ([says("own id", id=own)], {}),
        ([says("own id", id=own)], {}),
        ([calls("c1"), answers("c1")], {}),
        (["with a key"], {"headers": key_header()}),
        (["expected"], {"expected_seq": 106}),
    ):
        with CallQueries() as queries:
            answer = session.append(*events, **options)
        assert answer.status_code == 201, answer
        assert len(queries) == 1, queries.captured_queries


def test_the_append_opens_no_transaction_of_ours(session):
    """One autocommit statement: no BEGIN and no COMMIT are sent around it."""
    session.append("the key is known after this")
    with CallQueries() as queries:
        session.append("x", headers=key_header())
    assert [q["sql"].split()[0] for q in queries.captured_queries] == ["SELECT"]


def test_an_append_rewrites_no_index_of_the_session(session):
    """HOT: the new version of the row lies in the same page, no index changes."""
    session.append("warm")
    before = _updates()
    for n in range(200):
        session.append(str(n))
    updates, hot = (now - then for now, then in zip(_updates(), before, strict=True))
    assert updates >= 200
    assert hot / updates > 0.9


def _updates():
    fetch("SELECT pg_stat_force_next_flush()")
    fetch("SELECT pg_stat_clear_snapshot()")
    return fetch(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables"
        " WHERE relname = 'agent_sessions'"
    )[0]


def test_a_key_without_the_scope_appends_nothing(session, make_key):
    answer = Api(make_key(["sessions:read"])).post(
        f"{session.url}/events", {"events": [says("x")]}
    )
    assert (answer.status_code, answer.json["scope"]) == (403, "sessions:write")
    assert session.events() == []


class TestClientIds:
    def test_id_11_the_whole_history_sent_each_turn_is_stored_once(self, session):
        ids = [str(uuid4()) for _ in range(3)]
        turn_1 = [says("hello", id=ids[0])]
        turn_2 = [
            *turn_1,
            {
                "id": ids[1],
                "type": "message.assistant",
                "payload": {"content": "hi"},
            },
            says("hello", id=ids[2]),
        ]
        assert session.append(*turn_1).json["last_seq"] == 1
        assert [e["seq"] for e in session.append(*turn_2).json["events"]] == [1, 2, 3]
        reload = session.append(*turn_2)
        assert reload.status_code == 201
        assert [e["seq"] for e in reload.json["events"]] == [1, 2, 3]
        edited = session.append(says("HELLO edited", id=ids[0]))
        assert error_of(edited) == (422, "event_id_reused", "events[0].id")
        assert session.texts() == ["hello", "hi", "hello"]

    def test_another_type_under_a_used_id_is_refused(self, session):
        own = str(uuid4())
        session.append(says("x", id=own))
        answer = session.append(
            {"id": own, "type": "message.system", "payload": {"content": "x"}}
        )
        assert error_of(answer) == (422, "event_id_reused", "events[0].id")

    def test_one_reused_id_refuses_the_whole_batch(self, session):
        own = str(uuid4())
        session.append(says("x", id=own))
        answer = session.append("new", says("y", id=own))
        assert error_of(answer) == (422, "event_id_reused", "events[1].id")
        assert session.texts() == ["x"]

    def test_the_same_value_written_otherwise_is_the_same(self, session):
        own = str(uuid4())
        body = '{"events":[{"id":"%s","type":"acme.x","payload":%s}]}'
        url = f"{session.url}/events"
        first = session.api.post(url, data=(body % (own, '{"a":1,"b":"é"}')).encode())
        again = session.api.post(
            url, data=(body % (own, '{ "b" : "\\u00e9", "a" : 1.0 }')).encode()
        )
        assert again.status_code == 201
        assert again.json == first.json
        assert len(session.events()) == 1

    def test_an_id_twice_in_one_batch_is_refused(self, session):
        own = str(uuid4())
        answer = session.append(says("a", id=own), says("a", id=own.upper()))
        assert error_of(answer) == (422, "invalid", "events[1].id")
        assert session.events() == []

    def test_ids_belong_to_their_session(self, session, api, other_api):
        own = str(uuid4())
        for place in (session, make_session(api), make_session(other_api)):
            assert place.append(says("x", id=own)).json["events"] == [
                {"id": own, "seq": 1}
            ]

    def test_a_known_event_is_no_append_to_a_closed_session(self, session):
        """A lost answer can be asked for again after the session has closed."""
        event = says("x", id=str(uuid4()))
        first = session.append(event, expected_seq=0)
        session.api.post(f"{session.url}/close")
        assert session.append(event, expected_seq=0).json == first.json
        assert session.append(event, "new").json["code"] == "session_closed"


def test_ten_threads_on_one_session_leave_no_gap(session):
    barrier = threading.Barrier(10)
    seqs, failures = [], []

    def write(worker):
        try:
            barrier.wait(30)
            for n in range(5):
                answer = session.append(f"{worker}-{n}")
                seqs.append(answer.json["last_seq"])
        except Exception as exc:
            failures.append(exc)
        finally:
            connection.close()

    threads = [threading.Thread(target=write, args=(n,)) for n in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert sorted(seqs) == list(range(1, 51))
    texts = session.texts()
    for worker in range(10):
        own = [text for text in texts if text.startswith(f"{worker}-")]
        assert own == [f"{worker}-{n}" for n in range(5)]
