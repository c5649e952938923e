"""GET /sessions: filters, cursors, cost."""

from datetime import datetime, timedelta

import pytest

from access_app.models import ApiKey
from sessions_app.api.sessions import filtered
from sessions_app.models import Session
from sessions_app.services import SessionFields, create_session
from tests.factories import MISSING, SESSIONS, error_of, fetch, make_session
from tests.fixtures import Api, issue_key, make_project
from tests.queries import CallQueries


def ids(api, **params):
    answer = api.get(SESSIONS, params=params)
    assert answer.status_code == 200, answer
    return [item["id"] for item in answer.json["items"]]


def walk(api, **params):
    """Every id of every page, in the order of the pages."""
    found, cursor = [], None
    while True:
        more = {"cursor": cursor} if cursor else {}
        page = api.get(SESSIONS, params=params | more).json
        found += [item["id"] for item in page["items"]]
        assert len(page["items"]) <= params["limit"]
        cursor = page["next"]
        if cursor is None:
            return found


def test_the_newest_comes_first_and_without_its_state(api):
    made = [make_session(api, title=str(n)).id for n in range(3)]
    answer = api.get(SESSIONS).json
    assert [item["id"] for item in answer["items"]] == made[::-1]
    assert answer["next"] is None
    assert "state" not in answer["items"][0]


def test_each_filter_narrows_the_list(api):
    one = make_session(
        api, key="K-one", agent="a", subject="u-1", labels={"x": "1", "y": "2:3"}
    )
    two = make_session(api, title="My Order", agent="b", subject="u-1")
    fork = two.fork(0, title="")
    api.post(f"{one.url}/close")
    both = [two.id, one.id]
    assert ids(api, agent="a") == [one.id]
    assert ids(api, subject="u-1") == [fork.id, *both]
    assert ids(api, subject="u-1", agent="b") == [fork.id, two.id]
    assert ids(api, status="closed") == [one.id]
    assert ids(api, status="open") == [fork.id, two.id]
    assert ids(api, key="K-one") == [one.id]
    assert ids(api, label="x:1") == [one.id]
    assert ids(api, label=["x:1", "y:2:3"]) == [one.id]
    assert ids(api, label=["x:1", "y:0"]) == []
    assert ids(api, q="k-ONE") == [one.id]
    assert two.id in ids(api, q="y ord")
    assert ids(api, q="100%") == []
    assert ids(api, parent=two.id) == [fork.id]
    assert ids(api, parent=MISSING) == []


def test_updated_since_takes_what_changed_then_or_later(api, clock):
    old = make_session(api)
    clock.advance(seconds=3600)
    new = make_session(api)
    since = new.get()["updated_at"]
    assert ids(api, updated_since=since) == [new.id]
    later = (datetime.fromisoformat(since) + timedelta(microseconds=1)).isoformat()
    assert ids(api, updated_since=later) == []
    old.append("again")
    assert ids(api, updated_since=since) == [new.id, old.id]


@pytest.mark.parametrize(
    ("params", "path"),
    [
        ({"agents": "a"}, "agents"),
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"status": "done"}, "status"),
        ({"label": "x"}, "label"),
        ({"label": ":x"}, "label"),
        ({"updated_since": "2026-01-01T00:00:00"}, "updated_since"),
        ({"parent": "p"}, "parent"),
        ({"q": "a\0"}, "q"),
        ({"agent": ["a", "b"]}, "agent"),
        ({"cursor": "nonsense"}, "cursor"),
    ],
)
def test_a_wrong_parameter_is_422_with_its_name(api, params, path):
    status, _, found = error_of(api.get(SESSIONS, params=params))
    assert (status, found) == (422, path)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"agent": "a"},
        {"subject": "u"},
        {"status": "open"},
        {"key": "k0"},
        {"label": "x:1"},
        {"q": "title"},
        {"updated_since": "2020-01-01T00:00:00Z"},
        {"parent": MISSING},
    ],
)
def test_a_page_costs_one_query_whatever_its_length(api, params):
    for n in range(4):
        make_session(
            api, key=f"k{n}", agent="a", subject="u", title="title", labels={"x": "1"}
        )
    ids(api)  # the key is known after this
    with CallQueries() as queries:
        ids(api, **params)
    assert len(queries) == 1


@pytest.fixture(scope="module")
def crowded(database):
    """A project of 30,000 sessions, among 30,000 of others."""
    projects = [make_project(), make_project()]
    firsts = []
    for project in projects:
        first, _ = create_session(project.id, SessionFields(key="first"))
        fetch(
            "INSERT INTO agent_sessions (id, project_id, key, agent, subject, title,"
            " status, labels, metadata, state, version, last_seq, log_bytes, lineage,"
            " snapshot_version, patch_bytes, lock_fence, lock_holder, created_at,"
            " updated_at, active_at, parent_id, forked_from_seq)"
            " SELECT gen_random_uuid(), %s, 'key-' || n, 'agent-' || n %% 50,"
            " 'subject-' || n %% 1000, 'title ' || md5(n::text),"
            " CASE WHEN n %% 100 = 0 THEN 'closed' ELSE 'open' END,"
            " jsonb_build_object('n', (n %% 500)::text), '{}', '{}', 0, 0, 0, '[]',"
            " 0, 0, 0, '', at, at, date_trunc('minute', at),"
            " CASE WHEN n %% 1000 = 0 THEN %s::uuid END,"
            " CASE WHEN n %% 1000 = 0 THEN 0 END"
            " FROM generate_series(1, 30000) n,"
            " LATERAL (SELECT now() - make_interval(mins => n) AS at) t",
            project.id,
            first.id,
        )
        firsts.append(first)
    fetch("ANALYZE agent_sessions")
    yield projects[0]
    for project, first in zip(projects, firsts, strict=True):
        # They have no log, which verify_replay would rightly report.
        fetch("SELECT agentstate_erase_session(%s, %s)", project.id, first.id)
        fetch("DELETE FROM agent_sessions WHERE project_id = %s", project.id)
    fetch("ANALYZE agent_sessions")


@pytest.mark.parametrize(
    ("params", "index"),
    [
        ({}, "session_project_id"),
        ({"agent": "agent-7"}, "session_agent"),
        ({"subject": "subject-7"}, "session_subject"),
        ({"status": "closed"}, "session_status_id"),
        ({"key": "key-7"}, "session_project_key_uniq"),
        ({"label": {"n": "7"}}, "session_labels"),
        ({"q": "c4ca4238a0"}, "session_search_trgm"),
        ({"parent": MISSING}, "session_parent"),
    ],
)
def test_each_filter_reads_its_index(crowded, params, index):
    project = crowded
    found = filtered(Session.objects.filter(project_id=project.id), params)
    plan = found.order_by("-id")[:101].explain()
    assert index in plan, plan
    assert "Seq Scan" not in plan, plan


def test_recent_changes_are_found_by_their_index(crowded):
    project = crowded
    [(now,)] = fetch("SELECT now()")
    found = filtered(
        Session.objects.filter(project_id=project.id),
        {"updated_since": now - timedelta(minutes=5)},
    )
    plan = found.order_by("-id")[:101].explain()
    assert "session_active" in plan, plan


def test_a_page_far_in_the_list_reads_as_much_as_the_first(crowded):
    project = crowded
    found = Session.objects.filter(project_id=project.id).order_by("-id")
    far = found[20_000]
    plan = found.filter(id__lt=far.id)[:101].explain(analyze=True, format="json")
    assert '"Actual Rows": 101' in plan, plan
    assert '"Rows Removed by Filter"' not in plan, plan


def test_rp_05_equal_times_lose_and_repeat_nothing(project):
    """170 sessions, 130 of them of one moment: keyset by id, not by time."""
    made = [
        str(create_session(project.id, SessionFields(agent="x"))[0].id)
        for _ in range(170)
    ]
    api = Api(issue_key(project))
    assert walk(api, limit=50, agent="x") == made[::-1]


def test_rp_07_a_moving_list_shows_what_stays_exactly_once(api):
    made = [make_session(api).id for _ in range(60)]
    page = api.get(SESSIONS, params={"limit": 20}).json
    seen = [item["id"] for item in page["items"]]
    for _ in range(5):
        make_session(api)
    gone = made[:3]
    for id_ in gone:
        assert api.delete(f"{SESSIONS}/{id_}").status_code == 204
    while page["next"]:
        page = api.get(SESSIONS, params={"limit": 20, "cursor": page["next"]}).json
        seen += [item["id"] for item in page["items"]]
    assert seen == [id_ for id_ in made[::-1] if id_ not in gone]


def test_a_cursor_of_another_list_is_refused(api, session):
    session.append("a", "b")
    events = api.get(f"{session.url}/events", params={"limit": 1}).json["next"]
    answer = api.get(SESSIONS, params={"cursor": events})
    assert error_of(answer) == (422, "bad_cursor", "cursor")


def test_a_list_shows_its_own_project_and_what_the_key_is_bound_to(
    api, other_api, make_key
):
    mine = make_session(api, subject="u-1")
    make_session(other_api, subject="u-1")
    other = make_session(api, subject="u-2")
    assert ids(api) == [other.id, mine.id]
    assert ids(Api(make_key(subject="u-1"))) == [mine.id]
    assert ids(Api(make_key(subject="u-1")), subject="u-2") == []
    assert ids(Api(make_key(session_id=other.id))) == [other.id]
    assert ApiKey.objects.count() >= 4
