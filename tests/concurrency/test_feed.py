"""The project's feed while writers commit late, roll back and use savepoints."""

import threading

import pytest
from django.db import connection

from sessions_app import feed
from sessions_app.feed import START, FeedFilter, Position, read_feed
from sessions_app.models import Event, Session
from tests.concurrency.writers import Writer, run_all, write_at_random
from tests.factories import fetch, make_session
from tests.fixtures import wait_until_settled

EVERYTHING = FeedFilter()


def follow(project_id, is_over, limit=50, wanted=EVERYTHING):
    """Follow the feed from its start until `is_over()` and nothing more comes."""
    seen, position = [], START
    while True:
        ending = is_over()  # looked at before the read: what is over is committed
        if ending:
            wait_until_settled()
        page = read_feed(project_id, position, wanted, limit)
        seen += [(str(e.session_id), e.event.seq) for e in page.events]
        position = page.position
        if ending and not page.events and not page.has_more:
            return seen


def committed(project_id):
    return {
        (str(session_id), seq)
        for session_id, seq in Event.objects.filter(project_id=project_id).values_list(
            "session_id", "seq"
        )
    }


def check_gapless(project_id):
    for session in Session.objects.filter(project_id=project_id):
        seqs = list(
            Event.objects.filter(session_id=session.pk)
            .order_by("seq")
            .values_list("seq", flat=True)
        )
        assert seqs == list(range(session.last_seq + 1))


@pytest.mark.parametrize(
    ("writers", "sessions", "rounds"),
    [
        (32, 1, 6),
        (32, 60, 12),
        pytest.param(32, 1, 100, marks=pytest.mark.soak),
        pytest.param(32, 1000, 200, marks=pytest.mark.soak),
    ],
)
def test_acceptance_14_and_15_nothing_is_missed_repeated_or_out_of_order(
    project, api, writers, sessions, rounds
):
    """32 writers with rollbacks and savepoints, four readers who follow meanwhile."""
    ids = [make_session(api).id for _ in range(sessions)]
    running = writers
    guard = threading.Lock()
    kept, seen = [], []

    def write(name):
        nonlocal running
        try:
            count = write_at_random(project.id, ids, name, rounds)
        finally:
            with guard:
                running -= 1
        kept.append(count)

    def read(limit):
        seen.append(follow(project.id, lambda: running == 0, limit))

    run_all(
        [lambda n=n: write(f"w{n}") for n in range(writers)]
        + [lambda n=n: read(n) for n in (1, 7, 50, 1000)]
    )
    expected = committed(project.id)
    assert len(expected) == sum(kept) + sessions  # each session's own first record
    for one in seen:
        assert len(one) == len(set(one)), "repeated"
        assert set(one) == expected, "missed"
        assert one == seen[0], "another order"
    check_gapless(project.id)


def end_of_settled_feed(project):
    """Where the feed ends, with nothing committed that it does not show yet."""
    wait_until_settled()
    return feed.end_of_feed(project.id)


def test_what_an_open_transaction_may_still_write_below_is_held_back(project, api):
    late, early = make_session(api), make_session(api)
    start = end_of_settled_feed(project)
    writer = Writer(project.id)
    try:
        writer.append(late.id, "late")  # takes a lower place, and does not commit
        early.append("early")
        assert read_feed(project.id, start, EVERYTHING, 10).events == []
        assert feed.end_of_feed(project.id) == start
        writer.commit()
    finally:
        writer.close()
    wait_until_settled()
    page = read_feed(project.id, start, EVERYTHING, 10)
    assert [str(e.session_id) for e in page.events] == [late.id, early.id]


def test_a_transaction_that_only_reads_holds_nothing_back(project, api):
    session = make_session(api)
    start = end_of_settled_feed(project)
    writer = Writer(project.id)
    try:
        writer.connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        writer.connection.execute("SELECT count(*) FROM agent_sessions")
        session.append("seen at once")
        wait_until_settled()  # for others, such as an autovacuum that notes statistics
        assert len(read_feed(project.id, start, EVERYTHING, 10).events) == 1
    finally:
        writer.close()


def test_a_rolled_back_place_is_no_gap_to_wait_for(project, api):
    session = make_session(api)
    start = end_of_settled_feed(project)
    writer = Writer(project.id)
    try:
        writer.append(session.id, "never")
        writer.rollback()
    finally:
        writer.close()
    session.append("always")
    wait_until_settled()
    [event] = read_feed(project.id, start, EVERYTHING, 10).events
    assert event.event.payload == {"content": "always"}


def test_events_of_a_savepoint_are_placed_with_their_transaction(project, api):
    session, other = make_session(api), make_session(api)
    start = end_of_settled_feed(project)
    writer = Writer(project.id)
    try:
        writer.append_in_savepoint(session.id, "kept", keep=True)
        writer.append_in_savepoint(session.id, "undone", keep=False)
        other.append("another transaction, later begun and sooner done")
        assert read_feed(project.id, start, EVERYTHING, 10).events == []
        writer.append(session.id, "also kept")
        writer.commit()
    finally:
        writer.close()
    wait_until_settled()
    page = read_feed(project.id, start, EVERYTHING, 10)
    assert [e.event.payload["content"].split()[0] for e in page.events] == [
        "kept",
        "also",
        "another",
    ]


class TestOverTheApi:
    def read(self, api, **params):
        answer = api.get("/api/v1/events", params=params)
        assert answer.status_code == 200, answer
        return answer.json

    def test_pages_go_on_to_the_end_and_the_cursor_beyond_it(self, api):
        session = make_session(api)
        session.append(*[str(n) for n in range(1, 8)])
        page = self.read(api, limit=3)
        seqs = [e["seq"] for e in page["items"]]
        while page["next"]:
            page = self.read(api, limit=3, cursor=page["next"])
            seqs += [e["seq"] for e in page["items"]]
        assert seqs == list(range(8))
        assert self.read(api, after=page["cursor"])["items"] == []
        session.append("later")
        later = self.read(api, after=page["cursor"])
        assert [e["seq"] for e in later["items"]] == [8]

    def test_latest_is_what_comes_from_now_on(self, api):
        session = make_session(api)
        session.append("before")
        cursor = self.read(api, after="latest")["cursor"]
        assert self.read(api, after=cursor)["items"] == []
        session.append("after")
        [event] = self.read(api, after=cursor)["items"]
        assert event["payload"] == {"content": "after"}
        assert (event["session"], event["agent"]) == (session.id, "")

    def test_filters_narrow_it(self, api):
        one, two = make_session(api, agent="a"), make_session(api, agent="b")
        one.append("x", {"type": "acme.x", "payload": {}})
        two.append("y")

        def found(**params):
            return [(e["session"], e["seq"]) for e in self.read(api, **params)["items"]]

        assert found(session=one.id) == [(one.id, 0), (one.id, 1), (one.id, 2)]
        assert found(agent="b") == [(two.id, 0), (two.id, 1)]
        assert found(types="message.user") == [(one.id, 1), (two.id, 1)]
        assert found(types="acme.*,session.created", agent="a") == [
            (one.id, 0),
            (one.id, 2),
        ]
        assert found(types="message") == []

    @pytest.mark.parametrize(
        ("params", "path"),
        [
            ({"after": "x"}, "cursor"),
            ({"after": "latest", "cursor": "x"}, "cursor"),
            ({"limit": 0}, "limit"),
            ({"session": "s"}, "session"),
            ({"since": 1}, "since"),
        ],
    )
    def test_a_wrong_parameter_is_422(self, api, params, path):
        answer = api.get("/api/v1/events", params=params)
        assert answer.status_code == 422
        assert answer.json["errors"][0]["path"] == path


def test_a_filter_scans_a_bounded_stretch_and_hands_out_how_far_it_came(
    project, api, monkeypatch
):
    monkeypatch.setattr(feed, "SCAN_ROWS", 50)
    session = make_session(api)
    session.append(*["filler"] * 120)
    session.append({"type": "acme.rare", "payload": {}})
    session.append(*["filler"] * 60)
    wait_until_settled()
    rare = FeedFilter(types=["acme.rare"])
    position, found, pages = START, [], 0
    while True:
        page = read_feed(project.id, position, rare, 10)
        found += [e.event.seq for e in page.events]
        assert page.position > position or not page.has_more
        position, pages = page.position, pages + 1
        if not page.has_more:
            break
    assert found == [121]
    assert pages >= 3
    assert position == end_of_settled_feed(project)


def test_a_page_of_the_feed_is_an_index_read(project, api):
    session = make_session(api)
    session.append(*["x"] * 500)
    fetch("ANALYZE agent_events")
    with connection.cursor() as cursor:
        cursor.execute(
            f"EXPLAIN SELECT gen, xid, id FROM agent_events WHERE project_id = %s"
            f" AND (gen, xid, id) > (%s, %s::text::xid8, %s) AND {feed.SETTLED}"
            " ORDER BY gen, xid, id LIMIT 100",
            [project.id, *Position(0, 0, 0)],
        )
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "event_feed" in plan, plan
    assert "Sort" not in plan, plan


@pytest.mark.parametrize("expected", [100])
def test_acceptance_16_of_racing_writers_one_wins(api, expected):
    """Each loser is told the current number; on a fresh and on a grown log."""
    session = make_session(api)
    for last_seq in (0, 1):
        answers = []

        def race(last_seq=last_seq, answers=answers):
            for _ in range(expected // 20):
                answers.append(session.append("x", expected_seq=last_seq))

        run_all([race] * 20)
        won = [a for a in answers if a.status_code == 201]
        lost = [a for a in answers if a.status_code == 409]
        assert (len(won), len(lost)) == (1, expected - 1)
        assert {a.json["actual"] for a in lost} == {last_seq + 1}
        assert session.get()["last_seq"] == last_seq + 1
