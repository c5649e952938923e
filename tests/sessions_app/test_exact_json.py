"""Bytes are honest: over the API a JSON value comes back equal or is refused."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentstate import codec
from agentstate.errors import FieldError
from sessions_app.services import write_state
from tests.factories import (
    SESSIONS,
    answers,
    calls,
    error_of,
    fetch,
    make_session,
    says,
)
from tests.fixtures import Api, issue_key, make_project
from tests.json_values import OBJECTS, TEXT, VALUES, written


@pytest.fixture(scope="module")
def lasting_session(database):
    """One for all examples of a property."""
    project = make_project()
    made = make_session(Api(issue_key(project)))
    made.project_id = project.id
    return made


def append_raw(session, raw):
    return session.api.post(f"{session.url}/events", data=raw)


@given(OBJECTS)
def test_a_payload_comes_back_equal(lasting_session, payload):
    made = lasting_session.append({"type": "acme.any", "payload": payload})
    assert made.status_code == 201, made
    [event] = lasting_session.events(last=1)
    assert written(event["payload"]) == written(payload)
    assert list(event["payload"]) == list(payload)


@given(VALUES)
def test_a_tool_result_of_any_value_comes_back_equal(lasting_session, content):
    lasting_session.append(calls("c"), answers("c", content))
    [event] = lasting_session.events(last=1)
    assert written(event["payload"]["content"]) == written(content)


@given(OBJECTS)
def test_a_state_comes_back_equal(lasting_session, state):
    before = lasting_session.get("/state")["version"]
    answer = lasting_session.put_state(state, before)
    assert answer.status_code == 200, answer
    assert written(answer.json["state"]) == written(state)
    read = lasting_session.get("/state")
    assert written(read["state"]) == written(state)
    at = lasting_session.get()["last_seq"]
    assert written(lasting_session.get("/state", at_seq=at)) == written(read)


LABELS = st.dictionaries(
    TEXT.filter(lambda text: text and "\0" not in text),
    TEXT.filter(lambda text: "\0" not in text),
    max_size=3,
)


@given(OBJECTS, LABELS)
@settings(max_examples=25)
def test_metadata_and_labels_come_back_equal(lasting_session, metadata, labels):
    answer = lasting_session.api.patch(
        lasting_session.url, {"metadata": metadata, "labels": labels}
    )
    assert answer.status_code == 200, answer
    read = lasting_session.get()
    assert written(read["metadata"]) == written(metadata)
    assert read["labels"] == labels


RAW = (
    st.binary(max_size=80)
    | st.text(max_size=60).map(lambda text: text.encode(errors="surrogatepass"))
    | st.text('[]{}",:\\u0deE+-.1 ', max_size=40).map(str.encode)
    | VALUES.map(lambda value: codec.dumps(value).encode())
    | VALUES.map(lambda value: codec.dumps({"events": value}).encode())
    | VALUES.map(lambda value: codec.dumps({"events": [value]}).encode())
    | VALUES.map(
        lambda value: codec.dumps(
            {"events": [{"type": "message.user", "payload": {"content": value}}]}
        ).encode()
    )
    | st.tuples(VALUES, VALUES).map(
        lambda pair: codec.dumps(
            {"events": [{"type": pair[0], "payload": {}, "id": pair[1]}]}
        ).encode()
    )
    | VALUES.map(
        lambda value: codec.dumps(
            {"events": [says("x", occurred_at=value)], "expected_seq": value}
        ).encode()
    )
)


@given(RAW)
@settings(max_examples=150)
def test_any_body_of_an_append_is_taken_or_refused(lasting_session, raw):
    answer = append_raw(lasting_session, raw)
    assert answer.status_code < 500
    if answer.status_code != 201:
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.json["code"]


STATE_RAW = RAW | st.tuples(st.sampled_from(["merge", "patch", "state"]), VALUES).map(
    lambda pair: codec.dumps({pair[0]: pair[1], "expected_version": 0}).encode()
)


@given(
    STATE_RAW,
    st.sampled_from(["PUT", "PATCH"]),
    st.sampled_from(
        [
            "application/json",
            "application/merge-patch+json",
            "application/json-patch+json",
        ]
    ),
)
@settings(max_examples=150)
def test_any_body_of_a_state_write_is_taken_or_refused(
    lasting_session, raw, method, content_type
):
    answer = lasting_session.api.request(
        method,
        f"{lasting_session.url}/state",
        data=raw,
        content_type=content_type,
        headers={"If-Match": "*"},
    )
    assert answer.status_code < 500
    assert isinstance(lasting_session.get("/state")["state"], dict)


@given(VALUES, st.sampled_from(["", "/close", "/reopen", "/fork", "/lock"]))
@settings(max_examples=100)
def test_any_json_for_the_other_calls_is_taken_or_refused(lasting_session, value, path):
    body = codec.dumps(value).encode()
    for url in (f"{lasting_session.url}{path}", SESSIONS):
        answer = lasting_session.api.request(
            "POST" if path or url == SESSIONS else "PATCH", url, data=body
        )
        assert answer.status_code < 500
        assert answer.status_code != 201 or isinstance(value, dict)


def test_ev_01_a_nul_comes_back_and_spoils_nothing(session):
    raw = (
        rb'{"events":[{"type":"tool.call","payload":{"tool_call_id":"call_1","name":'
        rb'"read_file","arguments":{"path":"notes.bin"}}},{"type":"tool.result",'
        rb'"payload":{"tool_call_id":"call_1","content":"head\u0000tail"}},{"type":'
        rb'"message.assistant","payload":{"content":"Read it."}}]}'
    )
    assert append_raw(session, raw).status_code == 201
    read = session.payloads()
    assert len(read) == 3
    assert read[1]["content"] == "head\0tail"
    assert session.append("next").status_code == 201
    assert session.get("/replay", at_seq=4)["open_tool_calls"] == []


def test_ev_02_text_that_spells_an_escape_is_text(session):
    raw = (
        rb'{"events":[{"type":"message.user","payload":'
        rb'{"content":"the docs say \\u0000 ends a C string"}}]}'
    )
    assert append_raw(session, raw).status_code == 201
    expected = r"the docs say \u0000 ends a C string"
    assert session.texts() == [expected]
    assert session.payloads(q="DOCS") == [{"content": expected}]
    assert session.payloads(q=r"\u0000 ends") == [{"content": expected}]
    assert session.payloads(q="\\\\u0000 ends") == []


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_ev_04_numbers_that_are_no_json_are_refused(session, token):
    raw = (
        '{"events":[{"type":"tool.result","payload":{"tool_call_id":"call_3",'
        f'"content":{{"avg":{token}}}}}}}]}}'
    )
    answer = append_raw(session, raw.encode())
    assert error_of(answer) == (422, "invalid", "events[0].payload.content.avg")
    assert answer.json["errors"][0]["code"] == "non_finite"
    assert session.events() == []


def test_ev_04_server_side_code_cannot_store_them_either(session, project):
    for value in (float("nan"), float("inf")):
        with pytest.raises(FieldError):
            write_state(
                project.id, session.id, {"x": value}, expected_version=0, actor="test"
            )
    assert session.get("/state") == {"state": {}, "version": 0}


def test_ev_05_numbers_keep_every_digit_and_ids_are_strings(session):
    raw = (
        b'{"events":[{"type":"tool.call","payload":{"tool_call_id":"call_4","name":'
        b'"get_ticket","arguments":{"ticket_id":9007199254740993,'
        b'"account":184467440737095516150}}}]}'
    )
    made = append_raw(session, raw)
    listed = session.api.get(f"{session.url}/events")
    assert b'"ticket_id":9007199254740993,"account":184467440737095516150' in (
        listed.content
    )
    assert isinstance(made.json["events"][0]["id"], str)
    for body in (session.get(), session.events()[0], session.fork(1).get()):
        assert isinstance(body["id"], str)
        assert not [
            n
            for n in numbers_in(body)
            if n >= 2**53 and n != 9007199254740993 and n != 184467440737095516150
        ]


def numbers_in(value):
    if isinstance(value, dict):
        return [n for item in value.values() for n in numbers_in(item)]
    if isinstance(value, list):
        return [n for item in value for n in numbers_in(item)]
    return [value] if isinstance(value, int) else []


def nested(depth):
    content = "[" * depth + "0" + "]" * depth
    return (
        '{"events":[{"type":"tool.result","payload":{"tool_call_id":"call_5",'
        f'"content":{{"x":{content}}}}}}}]}}'
    ).encode()


def test_ev_06_a_fixed_depth_decides(session):
    assert append_raw(session, nested(60)).status_code == 201
    for depth in (5000, 100_000):
        started = time.thread_time()
        answer = append_raw(session, nested(depth))
        assert time.thread_time() - started < 1
        status, code, path = error_of(answer)
        assert (status, code) == (422, "invalid")
        assert path.startswith("events[0].payload.content.x[0]")
        assert "100" in answer.json["detail"]
    assert len(session.events()) == 1
    assert session.append("next").status_code == 201


def deep(levels):
    value = 0
    for _ in range(levels):
        value = {"a": value}
    return value


def test_a_state_as_deep_as_a_body_can_carry_can_be_read_and_sent_again(session):
    deepest = deep(99)
    assert session.put_state(deepest, 0).status_code == 200
    read = session.get("/state")
    assert session.put_state(read["state"], read["version"]).status_code == 200
    assert session.put_state(deep(100), 2).status_code == 422


def test_no_patch_makes_a_state_deeper_than_the_limit(session):
    """Else the session could not be written, or not be read, any more."""
    session.put_state(deep(60), 0)
    path = "/a" * 59
    for body in (
        {"patch": [{"op": "add", "path": f"{path}/b", "value": deep(60)}]},
        {"patch": [{"op": "copy", "from": "", "path": f"{path}/b"}]},
        {
            "patch": [
                {"op": "copy", "from": "", "path": f"{path}/b"},
                {"op": "copy", "from": "", "path": f"{path}/b{path}/b"},
                {"op": "copy", "from": "", "path": f"{path}/b{path}/b{path}/b"},
            ]
        },
    ):
        answer = session.patch_state(1, **body)
        assert answer.status_code == 422, answer
        assert answer.json["errors"][0]["code"] == "too_deep"
    for media_type, body in (
        ("application/merge-patch+json", deep(100)),
        (
            "application/json-patch+json",
            [{"op": "add", "path": "/a/b", "value": deep(98)}],
        ),
    ):
        answer = session.api.patch(
            f"{session.url}/state",
            body,
            headers={"If-Match": '"1"'},
            content_type=media_type,
        )
        assert answer.status_code == 422, answer
        assert answer.json["errors"][0]["code"] == "too_deep"
    assert session.get("/state") == {"state": deep(60), "version": 1}


def test_own_02_a_key_that_stands_twice_is_refused(session):
    raw = (
        b'{"events":[{"type":"message.user","type":"message.system",'
        b'"payload":{"content":"a"}}]}'
    )
    answer = append_raw(session, raw)
    assert error_of(answer) == (422, "invalid", "events[0].type")
    assert answer.json["errors"][0]["code"] == "duplicate_key"
    assert session.events() == []


def test_a_lone_surrogate_is_refused_with_its_path(session):
    raw = b'{"events":[{"type":"message.user","payload":{"content":"\\ud83d!"}}]}'
    answer = append_raw(session, raw)
    assert error_of(answer) == (422, "invalid", "events[0].payload.content")
    assert session.events() == []


def test_a_long_integer_is_refused_with_its_path(session):
    raw = b'{"events":[{"type":"a.b","payload":{"n":%s}}]}' % (b"7" * 5000)
    assert error_of(append_raw(session, raw)) == (
        422,
        "invalid",
        "events[0].payload.n",
    )


def test_what_lies_in_the_database_is_the_text_that_was_sent(session):
    append_raw(
        session,
        b'{"events":[{"type":"a.b","payload":{"b":1.50,"a":"\\u00e9\\u0000"}}]}',
    )
    [(text,)] = fetch(
        "SELECT payload::text FROM agent_events WHERE session_id = %s AND seq = 1",
        session.id,
    )
    assert text == '{"b":1.50,"a":"é\\u0000"}'
