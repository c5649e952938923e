"""POST /sessions/{id}/fork: the same log up to some seq, then a life of its own."""

from uuid import uuid4

import pytest

from sessions_app.models import Event, Session
from tests.factories import (
    answers,
    calls,
    error_of,
    key_header,
    make_session,
    says,
)


@pytest.fixture
def parent(api):
    """Six events: a turn with a tool, two states."""
    session = make_session(
        api, agent="a", subject="u-1", title="T", labels={"x": "1"}, metadata={"m": 1}
    )
    session.append("one", calls("c1"))
    session.put_state({"n": 1}, 0)
    session.append(answers("c1"), "five")
    session.put_state({"n": 2}, 1)
    return session


def log_of(session):
    return [
        (e["seq"], e["id"], e["type"], e["payload"]) for e in session.events(limit=1000)
    ]


@pytest.mark.parametrize("at_seq", range(7))
def test_a_fork_begins_with_the_same_log_and_the_state_of_then(parent, at_seq):
    before = log_of(parent), parent.get()
    fork = parent.fork(at_seq)
    assert log_of(fork) == before[0][:at_seq]
    made = fork.get()
    assert made["last_seq"] == made["forked_from_seq"] == at_seq
    assert made["parent"] == parent.id
    then = parent.get("/state", at_seq=at_seq)
    assert (made["state"], made["version"]) == (then["state"], then["version"])
    assert fork.open_calls() == parent.open_calls(at_seq)
    for name in ("agent", "subject", "title", "labels", "metadata"):
        assert made[name] == before[1][name]
    assert (log_of(parent), parent.get()) == before


def test_both_go_on_apart(parent):
    fork = parent.fork(2)
    fork.append("fork 3", answers("c1", "forked"))
    parent.append("parent 7")
    fork.put_state({"mine": True}, 0)
    assert [e["seq"] for e in fork.events()] == [1, 2, 3, 4, 5]
    assert fork.get("/state")["state"] == {"mine": True}
    assert fork.open_calls() == []
    assert parent.get("/state")["state"] == {"n": 2}
    assert len(parent.events()) == 7
    assert fork.get("/state", at_seq=2)["state"] == {}
    assert fork.open_calls(2) == [(2, "c1")]


def test_every_way_to_read_crosses_the_seam(parent):
    fork = parent.fork(5)
    fork.append("six", "seven")
    fork.put_state({"n": 3}, 1)
    seqs = [e["seq"] for e in fork.events()]
    assert seqs == list(range(1, 9))
    for params, expected in (
        ({"after_seq": 4, "limit": 3}, [5, 6, 7]),
        ({"last": 4}, [5, 6, 7, 8]),
        ({"order": "desc", "limit": 4}, [8, 7, 6, 5]),
        ({"before_seq": 7, "order": "desc", "limit": 3}, [6, 5, 4]),
        ({"types": "message.user"}, [1, 5, 6, 7]),
        ({"types": "state.changed"}, [3, 8]),
        ({"q": "five"}, [5]),
        ({"after_seq": -1, "limit": 2}, [0, 1]),
    ):
        assert [e["seq"] for e in fork.events(**params)] == expected
    page, found = fork.get("/events", limit=2), []
    found += page["items"]
    while page["next"]:
        page = fork.get("/events", limit=2, cursor=page["next"])
        found += page["items"]
    assert [e["seq"] for e in found] == seqs
    replay = fork.get("/replay", at_seq=6)
    assert [e["seq"] for e in replay["conversation"]] == [1, 2, 4, 5, 6]
    assert fork.get("/replay", at_seq=8)["state"] == {"n": 3}


def test_a_fork_of_a_fork_of_a_fork(parent):
    one = parent.fork(5)
    one.append("one 6", "one 7")
    two = one.fork(6)
    two.append("two 7")
    below = two.fork(3)  # within what lies in the first of them
    below.append("below 4")
    three = two.fork(7)
    three.append("three 8")
    texts = [
        e["payload"].get("content") for e in three.events() if "message" in e["type"]
    ]
    assert texts == ["one", "five", "one 6", "two 7", "three 8"]
    assert [e["seq"] for e in three.events()] == list(range(1, 9))
    assert log_of(below)[:3] == log_of(parent)[:3]
    assert below.get("/state")["state"] == {"n": 1}
    assert Event.objects.filter(session_id=three.id).count() == 2  # with its creation


def test_ids_seen_in_the_parent_are_not_stored_again(parent):
    shared, later = says("shared", id=str(uuid4())), says("later", id=str(uuid4()))
    parent.append(shared)
    parent.append(later)
    fork = parent.fork(7)
    again = fork.append(shared, "new")
    assert [e["seq"] for e in again.json["events"]] == [7, 8]
    edited = fork.append(shared | {"payload": {"content": "edited"}})
    assert error_of(edited) == (422, "event_id_reused", "events[0].id")
    # What the parent appended after the fork is not in the fork's log.
    assert fork.append(later).json["events"] == [{"id": later["id"], "seq": 9}]
    assert [e["seq"] for e in fork.events()] == list(range(1, 10))


@pytest.mark.parametrize("at_seq", [7, 2**63 - 1])
def test_a_seq_that_is_not_there_is_404(parent, at_seq):
    answer = parent.api.post(f"{parent.url}/fork", {"at_seq": at_seq})
    assert (answer.status_code, answer.json["code"]) == (404, "seq_not_found")


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({}, "at_seq"),
        ({"at_seq": -1}, "at_seq"),
        ({"at_seq": "1"}, "at_seq"),
        ({"at_seq": 1, "subject": "u-2"}, "subject"),
    ],
)
def test_a_wrong_body_is_422(parent, body, path):
    answer = parent.api.post(f"{parent.url}/fork", body)
    assert error_of(answer) == (422, "invalid", path)


def test_a_fork_may_be_named_and_a_taken_key_is_409(parent, project):
    fork = parent.fork(3, key="what-if", agent="b", title="What if?", labels={})
    assert fork.get()["key"] == "what-if"
    assert fork.get()["agent"] == "b"
    answer = parent.api.post(f"{parent.url}/fork", {"at_seq": 3, "key": "what-if"})
    assert (answer.status_code, answer.json["code"]) == (409, "session_key_taken")
    assert Session.objects.filter(project_id=project.id).count() == 2


def test_a_retried_fork_is_one_fork(parent, project):
    headers = key_header()
    body = {"at_seq": 3}
    first = parent.api.post(f"{parent.url}/fork", body, headers=headers)
    again = parent.api.post(f"{parent.url}/fork", body, headers=headers)
    assert again.json == first.json
    assert Session.objects.filter(project_id=project.id).count() == 2


def test_a_closed_session_can_be_forked(parent):
    parent.api.post(f"{parent.url}/close")
    fork = parent.fork(6)
    assert fork.get()["status"] == "open"
    assert fork.append("on").status_code == 201


class TestErasedParents:
    def test_forks_keep_the_log_they_began_with(self, parent):
        early, late = parent.fork(2), parent.fork(5)
        late.append("late 6")
        grandchild = late.fork(6)
        siblings = [early, late, grandchild]
        before = [(log_of(s), s.get("/replay", at_seq=2)) for s in siblings]
        parent.append("only mine")
        assert parent.api.delete(parent.url).status_code == 204
        assert [(log_of(s), s.get("/replay", at_seq=2)) for s in siblings] == before
        for each in siblings:
            seq = each.get()["last_seq"]
            assert each.append("goes on").json["last_seq"] == seq + 1
            assert [e["seq"] for e in each.events()] == list(range(1, seq + 2))
        assert not Event.objects.filter(session_id=parent.id).exists()
        # What no fork had is gone.
        assert (
            not Event.objects.filter(
                project_id=Session.objects.get(pk=early.id).project_id,
                payload__isnull=False,
            )
            .containing("only mine")
            .exists()
        )

    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)])
    def test_erased_in_any_order_the_last_one_reads_all(self, parent, order):
        one = parent.fork(5)
        one.append("one 6")
        two = one.fork(6)
        two.append("two 7")
        last = two.fork(7)
        last.append("last 8")
        before = log_of(last), last.get("/state", at_seq=4), last.open_calls(2)
        for index in order:
            gone = (parent, one, two)[index]
            assert gone.api.delete(gone.url).status_code == 204
            now = log_of(last), last.get("/state", at_seq=4), last.open_calls(2)
            assert now == before
        assert last.append("nine").json["last_seq"] == 9
        assert last.get("/state")["state"] == {"n": 1}

    def test_an_id_of_the_parent_is_still_known(self, parent):
        event = says("shared", id=str(uuid4()))
        parent.append(event)
        fork = parent.fork(7)
        parent.api.delete(parent.url)
        assert fork.append(event).json["events"] == [{"id": event["id"], "seq": 7}]
        assert fork.get()["last_seq"] == 7

    def test_an_erased_fork_leaves_the_parent(self, parent):
        before = log_of(parent)
        fork = parent.fork(4)
        fork.append("mine")
        assert fork.api.delete(fork.url).status_code == 204
        assert log_of(parent) == before

    def test_the_log_of_the_heir_is_in_the_feed_once(self, parent):
        fork = parent.fork(5)
        parent.api.delete(parent.url)
        feed = parent.api.get("/api/v1/events", params={"limit": 1000}).json["items"]
        own = [(e["session"], e["seq"]) for e in feed]
        assert sorted(own) == [(fork.id, seq) for seq in range(6)]
