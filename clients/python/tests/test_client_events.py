"""Appending and reading a session's log."""

import uuid
from datetime import datetime, timezone

import pytest
from tests.fixtures import wait_until_settled

from agentstate_client import EventIdReused, SeqConflict, ValidationError

HI = {"content": "hi"}


def texts(events):
    return [event.payload["content"] for event in events]


def append_texts(client, session, letters):
    events = [{"type": "message.user", "payload": {"content": x}} for x in letters]
    return client.events.append_many(session.id, events)


def test_append_numbers_the_event(client, session):
    id = str(uuid.uuid4())
    at = datetime(2026, 3, 1, 10, 0, 5, tzinfo=timezone.utc)
    run = str(uuid.uuid4())
    result = client.events.append(
        session.id, "message.user", HI, id=id, occurred_at=at, run=run, expected_seq=0
    )
    assert (result.last_seq, result.events[0].id, result.events[0].seq) == (1, id, 1)
    [event] = client.events.list(session.id).items
    assert (event.id, event.seq, event.type) == (id, 1, "message.user")
    assert (event.payload, event.occurred_at, event.run) == (HI, at, run)
    assert event.step is None and event.actor.startswith("key:")
    assert event.created_at.tzinfo is not None
    assert event.extra == {}


def test_a_batch_is_appended_whole_or_not_at_all(client, session):
    assert append_texts(client, session, "abc").last_seq == 3
    with pytest.raises(ValidationError) as caught:
        client.events.append_many(
            session.id,
            [
                {"type": "message.user", "payload": HI},
                {"type": "state.changed", "payload": {}},
            ],
        )
    assert caught.value.errors[0]["path"].startswith("events[1]")
    assert client.sessions.get(session.id).last_seq == 3


def test_an_expected_seq_that_has_passed_is_a_conflict(client, session):
    append_texts(client, session, "ab")
    with pytest.raises(SeqConflict) as caught:
        client.events.append(session.id, "message.user", HI, expected_seq=1)
    assert (caught.value.expected, caught.value.actual) == (1, 2)
    client.events.append(session.id, "message.user", HI, expected_seq=2)


def test_the_same_event_id_is_stored_once(client, session):
    id = str(uuid.uuid4())
    first = client.events.append(session.id, "message.user", HI, id=id)
    again = client.events.append(session.id, "message.user", HI, id=id)
    assert again.events == first.events
    with pytest.raises(EventIdReused):
        client.events.append(session.id, "message.user", {"content": "x"}, id=id)
    assert client.sessions.get(session.id).last_seq == 1


def test_values_come_back_equal(client, session):
    payload = {
        "big": 184467440737095516150,
        "float": 0.1,
        "nul": "head\0tail",
        "text": "née \\u0000 \U0001f600",
        "deep": {"list": [None, True, {"": []}]},
        "__proto__": {"x": 1},
    }
    client.events.append(session.id, "acme.probe", payload)
    [event] = client.events.list(session.id).items
    assert event.payload == payload


def test_a_lone_surrogate_is_refused_with_its_path(client, session):
    with pytest.raises(ValidationError) as caught:
        client.events.append(session.id, "message.user", {"content": "\ud800"})
    assert caught.value.errors[0]["path"] == "events[0].payload.content"
    assert client.sessions.get(session.id).last_seq == 0


def test_list_reads_from_either_end(client, session):
    append_texts(client, session, "abcdef")

    def read(**options):
        return texts(client.events.list(session.id, **options))

    assert read() == list("abcdef")
    assert read(after_seq=2, before_seq=5) == ["c", "d"]
    assert read(last=2) == ["e", "f"]
    assert read(order="desc", limit=2) == ["f", "e"]
    assert read(q="B") == ["b"]


def test_types_name_one_type_or_a_family(client, session):
    client.events.append(session.id, "message.user", HI)
    client.events.append(session.id, "acme.seen", {})
    client.events.append(session.id, "message.assistant", HI)

    def read(types):
        return [e.type for e in client.events.iterate(session.id, types=types)]

    assert read(["message.*"]) == ["message.user", "message.assistant"]
    assert read(["acme.seen", "message.user"]) == ["message.user", "acme.seen"]
    assert read("acme.seen") == ["acme.seen"]


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_iterate_goes_over_all_pages(client, session, order):
    append_texts(client, session, "abcdefg")
    found = texts(client.events.iterate(session.id, order=order, limit=3))
    assert found == sorted("abcdefg", reverse=order == "desc")


def test_the_feed_holds_every_session(client):
    one, two = client.sessions.create(agent="a"), client.sessions.create(agent="b")
    client.events.append(one.id, "message.user", HI)
    client.events.append(two.id, "acme.seen", {})
    wait_until_settled()
    found = list(client.feed.iterate(types=["message.*", "acme.seen"], limit=1))
    assert {(e.session, e.agent, e.type) for e in found} == {
        (one.id, "a", "message.user"),
        (two.id, "b", "acme.seen"),
    }
    mine = client.feed.list(session=two.id, types=["acme.*"])
    assert [e.session for e in mine] == [two.id]
    assert client.feed.list(agent="a", types=["acme.*"]).items == []


def test_the_feed_goes_on_where_a_page_ended(client, session):
    client.events.append(session.id, "message.user", {"content": "a"})
    wait_until_settled()
    page = client.feed.list(types=["message.*"])
    client.events.append(session.id, "message.user", {"content": "b"})
    wait_until_settled()
    assert texts(client.feed.list(after=page.cursor, types=["message.*"])) == ["b"]
