"""GET /sessions/{id}/events: the log, in pages."""

import pytest

from sessions_app import log
from sessions_app.models import Event
from tests.factories import buffers, error_of, fetch, make_session, says
from tests.queries import CallQueries


@pytest.fixture
def ten(session):
    for n in range(1, 11):
        kind = "acme.odd" if n % 2 else "message.user"
        session.append({"type": kind, "payload": {"content": f"text {n}"}})
    return session


def seqs(session, **params):
    return [event["seq"] for event in session.events(**params)]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, range(1, 11)),
        ({"limit": 3}, [1, 2, 3]),
        ({"after_seq": 7}, [8, 9, 10]),
        ({"after_seq": -1, "limit": 2}, [0, 1]),
        ({"after_seq": 10}, []),
        ({"after_seq": 2**63 - 1}, []),
        ({"before_seq": 3}, [1, 2]),
        ({"before_seq": 0}, []),
        ({"after_seq": 3, "before_seq": 6}, [4, 5]),
        ({"order": "desc", "limit": 2}, [10, 9]),
        ({"order": "desc", "before_seq": 4}, [3, 2, 1]),
        ({"last": 3}, [8, 9, 10]),
        ({"last": 3, "before_seq": 6}, [3, 4, 5]),
        ({"last": 1000}, range(1, 11)),
        ({"last": 2, "types": "acme.odd"}, [7, 9]),
        ({"types": "acme.odd"}, [1, 3, 5, 7, 9]),
        ({"types": "acme.*"}, [1, 3, 5, 7, 9]),
        ({"types": "acme.odd,message.*", "limit": 3}, [1, 2, 3]),
        ({"types": "acme"}, []),
        ({"q": "TEXT 10"}, [10]),
        ({"q": "%"}, []),
        ({"q": "_"}, []),
    ],
)
def test_a_page_holds_what_was_asked_for(ten, params, expected):
    assert seqs(ten, **params) == list(expected)


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("types", [None, "acme.*"])
def test_pages_follow_one_another_without_gap_or_repeat(ten, order, types):
    params = {"order": order, "limit": 3} | ({"types": types} if types else {})
    url = f"{ten.url}/events"
    page = ten.api.get(url, params=params).json
    found = page["items"]
    while page["next"]:
        ten.append("comes meanwhile")
        page = ten.api.get(url, params=params | {"cursor": page["next"]}).json
        found += page["items"]
    walked = [event["seq"] for event in found if event["seq"] <= 10]
    whole = list(range(1, 11, 2 if types else 1))
    assert walked == (whole[::-1] if order == "desc" else whole)


@pytest.mark.parametrize(
    ("params", "path"),
    [
        ({"after": 1}, "after"),
        ({"after_seq": "x"}, "after_seq"),
        ({"after_seq": -2}, "after_seq"),
        ({"after_seq": 2**63}, "after_seq"),
        ({"limit": 1001}, "limit"),
        ({"limit": 0}, "limit"),
        ({"last": 0}, "last"),
        ({"order": "up"}, "order"),
        ({"last": 1, "after_seq": 1}, "after_seq"),
        ({"last": 1, "order": "asc"}, "order"),
        ({"cursor": "x"}, "cursor"),
        ({"limit": ["1", "2"]}, "limit"),
        ({"types": "a\0b"}, "types"),
        ({"q": ""}, "q"),
    ],
)
def test_a_wrong_parameter_is_422_with_its_name(session, params, path):
    answer = session.api.get(f"{session.url}/events", params=params)
    status, _, found = error_of(answer)
    assert (status, found) == (422, path)


def test_a_cursor_serves_its_own_session_and_order_only(ten, api):
    other = make_session(api)
    cursor = ten.api.get(f"{ten.url}/events", params={"limit": 1}).json["next"]
    for url, params in (
        (other.url, {}),
        (ten.url, {"order": "desc"}),
    ):
        answer = api.get(f"{url}/events", params=params | {"cursor": cursor})
        assert error_of(answer) == (422, "bad_cursor", "cursor")


@pytest.mark.parametrize(
    "params", [{}, {"last": 5}, {"order": "desc"}, {"types": "acme.*"}, {"q": "text"}]
)
def test_a_page_costs_two_queries_whatever_its_length(ten, params):
    """One reads the session, one its events."""
    ten.events()
    with CallQueries() as queries:
        ten.events(**params)
    assert len(queries) <= (3 if "last" in params else 2)


def test_large_events_end_a_page_early_and_none_is_lost(session, monkeypatch):
    monkeypatch.setattr(log, "PAGE_BYTES", 5000)
    for n in range(12):
        session.append(says(f"{n}:" + "x" * (100 if n % 3 else 4000)))
    found, cursor, sizes = [], None, []
    while cursor or not sizes:
        params = {"cursor": cursor} if cursor else {}
        page = session.api.get(f"{session.url}/events", params=params).json
        sizes.append(len(page["items"]))
        found += page["items"]
        cursor = page["next"]
    assert [event["seq"] for event in found] == list(range(1, 13))
    assert len(sizes) > 2


@pytest.fixture(scope="module")
def long_log(database):
    """A session of 100,000 events, made by the append itself."""
    from tests.fixtures import Api, issue_key, make_project

    session = make_session(Api(issue_key(make_project())))
    fetch(
        """
        SELECT count(agentstate_append_events(
            s.project_id, s.id,
            (SELECT array_agg(gen_random_uuid()) FROM generate_series(1, 1000 + 0 * n)),
            array_fill(false, ARRAY[1000]),
            array_fill('acme.filler'::text, ARRAY[1000]),
            array_fill('{"content":"filler"}'::text, ARRAY[1000]),
            array_fill(NULL::uuid, ARRAY[1000]), array_fill(NULL::uuid, ARRAY[1000]),
            array_fill(NULL::timestamptz, ARRAY[1000]), NULL, NULL, NULL, NULL,
            'test', false, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 24))
        FROM agent_sessions s, generate_series(1, 100) n WHERE s.id = %s
        """,
        session.id,
    )
    fetch("ANALYZE agent_events")
    return session


def test_the_last_50_are_an_index_read(long_log):
    found = (
        Event.objects.filter(
            project_id=project_of(long_log),
            session_id=long_log.id,
            seq__gte=1,
            seq__lte=100_000,
        )
        .order_by("-seq")
        .values_list("seq", "payload")[:51]
    )
    plan = found.explain(analyze=True, buffers=True)
    assert "Index Scan Backward using event_session_seq_uniq" in plan, plan
    assert "Sort" not in plan, plan
    assert seqs(long_log, last=50) == list(range(99_951, 100_001))


def project_of(session):
    [(project_id,)] = fetch(
        "SELECT project_id FROM agent_sessions WHERE id = %s", session.id
    )
    return project_id


APPEND = """
SELECT agentstate_append_events(
    %s, %s, ARRAY[gen_random_uuid()], ARRAY[true], ARRAY['message.user'],
    ARRAY['{"content":"x"}'], ARRAY[NULL]::uuid[], ARRAY[NULL]::uuid[],
    ARRAY[NULL]::timestamptz[], NULL, NULL, NULL, NULL, 'test', false, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, 24)
"""


def test_an_append_touches_as_many_pages_in_a_long_log_as_in_a_short(long_log, session):
    session.append(*[str(n) for n in range(10)])
    short = buffers(APPEND, project_of(session), session.id)
    long = buffers(APPEND, project_of(long_log), long_log.id)
    assert long <= short + 8  # the height of the indexes


def test_a_page_touches_as_many_pages_wherever_it_is(long_log):
    def page(after):
        return buffers(
            "SELECT payload FROM agent_events WHERE project_id = %s AND session_id = %s"
            " AND seq > %s AND seq <= 100000 ORDER BY seq LIMIT 101",
            project_of(long_log),
            long_log.id,
            after,
        )

    assert page(99_000) <= page(0) + 4
