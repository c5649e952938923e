"""GET /sessions/{id}/replay: a session as it was after event N."""

import pytest
from django.db import transaction

from sessions_app.models import Session
from sessions_app.replay import replay_at
from tests.factories import (
    APPEND_FILLER,
    answers,
    calls,
    error_of,
    fetch,
    make_session,
    says,
)
from tests.fixtures import Api, issue_key, make_project
from tests.queries import CallQueries


def test_everything_is_as_it_was_after_that_event(session):
    session.append("hello", calls("c1"))
    session.put_state({"step": "find"}, 0)
    session.append(answers("c1", "found"), {"type": "acme.note", "payload": {}})
    session.put_state({"step": "done"}, 1)
    at_2 = session.get("/replay", at_seq=2)
    assert (at_2["at_seq"], at_2["state"], at_2["version"]) == (2, {}, 0)
    assert [e["seq"] for e in at_2["conversation"]] == [1, 2]
    assert [c["tool_call_id"] for c in at_2["open_tool_calls"]] == ["c1"]
    at_5 = session.get("/replay", at_seq=5)
    assert (at_5["state"], at_5["version"]) == ({"step": "find"}, 1)
    assert [e["seq"] for e in at_5["conversation"]] == [1, 2, 4]
    assert at_5["open_tool_calls"] == []
    assert session.get("/replay", at_seq=6)["state"] == {"step": "done"}
    assert session.get("/replay", at_seq=0) == {
        "at_seq": 0,
        "state": {},
        "version": 0,
        "conversation": [],
        "conversation_before_seq": None,
        "open_tool_calls": [],
        "plan": None,
    }


def test_a_replay_is_the_same_however_the_log_goes_on(session):
    session.append("a", calls("x"))
    session.put_state({"n": 1}, 0)
    then = session.get("/replay", at_seq=3)
    session.append(answers("x"), "b", calls("x"))
    session.put_state({"n": 2}, 1)
    session.api.post(f"{session.url}/close")
    assert session.get("/replay", at_seq=3) == then


def test_a_long_conversation_is_paged_from_its_end(session):
    session.append(*[str(n) for n in range(1, 26)])
    found, before = [], None
    while True:
        more = {"before_seq": before} if before else {}
        page = session.get("/replay", at_seq=25, limit=10, **more)
        found = [e["seq"] for e in page["conversation"]] + found
        before = page["conversation_before_seq"]
        if before is None:
            break
    assert found == list(range(1, 26))


@pytest.mark.parametrize(
    ("params", "status", "path"),
    [
        ({}, 422, "at_seq"),
        ({"at_seq": "x"}, 422, "at_seq"),
        ({"at_seq": -1}, 422, "at_seq"),
        ({"at_seq": 1}, 404, None),
        ({"at_seq": 0, "limit": 0}, 422, "limit"),
        ({"at_seq": 0, "seq": 0}, 422, "seq"),
    ],
)
def test_a_wrong_parameter_is_refused(session, params, status, path):
    answer = session.api.get(f"{session.url}/replay", params=params)
    assert (answer.status_code, error_of(answer)[2]) == (status, path)


@pytest.fixture(scope="module")
def long_session(database):
    """50,000 events; a state change each 500, an old open call, the rest filler."""
    session = make_session(Api(issue_key(make_project())))
    session.append(calls("old"))
    for version in range(20):
        session.put_state({"n": version, "keep": "x" * 100}, version)
        fetch(APPEND_FILLER, 2500, session.id)
        session.append(says(f"turn {version}"), calls("c"), answers("c"))
    fetch("VACUUM ANALYZE agent_events, agent_tool_calls, agent_snapshots")
    return session


def pages_touched(work):
    """How many pages of our tables and indexes this connection reads for `work`.

    Counted within one transaction, where nobody else's reads are among them.
    """

    def count():
        [(n,)] = fetch(
            "SELECT sum(pg_stat_get_xact_blocks_fetched(oid)) FROM pg_class"
            " WHERE relnamespace IN ('public'::regnamespace, 'pg_toast'::regnamespace)"
        )
        return int(n)

    work()  # plans are known from here on
    with transaction.atomic():
        before = count()
        work()
        return count() - before


def test_a_replay_costs_what_it_returns_not_the_length_of_the_log(long_session):
    stored = Session.objects.get(pk=long_session.id)
    end = stored.last_seq
    early = pages_touched(lambda: replay_at(stored, 2510, limit=3))
    late = pages_touched(lambda: replay_at(stored, end, limit=3))
    assert late <= early + 60
    assert late < 300  # the log has some thousand pages


def test_a_fork_costs_the_same_at_the_end_of_a_long_log(long_session, session):
    session.append("a", "b")
    session.fork(1)

    def queries(of, at_seq):
        with CallQueries() as found:
            of.fork(at_seq)
        return len(found)

    end = long_session.get()["last_seq"]
    assert queries(long_session, end) <= queries(session, 1) + 2
    short = pages_touched(lambda: session.fork(1))
    long = pages_touched(lambda: long_session.fork(end))
    assert long <= short + 150
