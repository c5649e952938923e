"""What each page asks the database: as much for many rows as for few."""

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.artifacts.calls import upload
from tests.factories import SessionApi
from tests.people import append, make_session


def furnish(api, count):
    """`count` more of all that the pages list."""
    for _ in range(count):
        session = make_session(api, agent="support", subject="u-1", state={"a": 1})
        append(api, session, 2)
        upload(SessionApi(api, session), session.encode())
        source = {"session": session, "seqs": [2]}
        fact = {"subject": "u-1", "fact": f"Fact of {session}", "source": source}
        assert api.post("/api/v1/memory", fact).status_code == 201
        plan = [
            {"tool": "look", "requires_approval": True},
            {"tool": "go", "depends_on": []},
            {"tool": "wait", "depends_on": []},
        ]
        body = {"session": session, "steps": plan}
        run = api.post("/api/v1/runs", body).json
        for _ in range(2):
            claim = {"worker": f"w-{run['id']}", "run": run["id"]}
            [step] = api.post("/api/v1/steps/claim", claim).json["steps"]
            item = {"step": step["step"], "lease_token": step["lease_token"]}
            if step["tool"] == "go":
                done = {"items": [item | {"result": {"x": 1}}]}
                api.post("/api/v1/steps/complete", done)
    return session, run["id"]


# A page, and the most queries that it may take, sign-in and frame (five) included.
PAGES = {
    "": 28,
    "runs/": 8,
    "runs/?state=running&state=waiting": 8,
    "inbox/": 12,
    "workers/": 8,
    "sessions/": 9,
    "sessions/?agent=support&hours=24": 10,
    "artifacts/": 7,
    "artifacts/?name=notes": 7,
    "search/?q=hello": 10,
    "search/?hours=24": 13,
    "memory/": 9,
    "memory/?view=facts": 14,
    "memory/subject/?subject=u-1": 14,
    "audit/": 7,
    "settings/": 10,
}


def counted(client, url):
    with CaptureQueriesContext(connection) as queries:
        assert client.get(url).status_code == 200, url
    return [query["sql"] for query in queries]


@pytest.fixture
def client(browse):
    return browse("owner")


def test_a_list_costs_as_much_for_many_rows_as_for_few(api, client, project):
    furnish(api, 2)
    urls = [f"/p/{project.slug}/{path}" for path in PAGES]
    for url in urls:  # what is read once for all, and looks that are noted once
        client.get(url)
    few = {url: counted(client, url) for url in urls}
    furnish(api, 5)
    for path, url in zip(PAGES, urls, strict=True):
        many = counted(client, url)
        assert len(many) == len(few[url]) <= PAGES[path], (path, "\n".join(many))


def test_a_list_of_many_subjects_notes_the_looks_at_once(api, client, project):
    for number in range(8):
        api.post("/api/v1/memory", {"subject": f"u-{number}", "fact": "Likes tea"})
    url = f"/p/{project.slug}/memory/?view=facts"
    writes = [sql for sql in counted(client, url) if sql.startswith("INSERT")]
    assert len(writes) == 1
    assert [s for s in counted(client, url) if s.startswith("INSERT")] == []
    looks = api.get("/api/v1/audit", params={"action": "subject.viewed"}).json
    assert len(looks["items"]) == 8


def test_one_thing_costs_as_much_when_it_is_long(api, client, project):
    session, run = furnish(api, 1)
    base = f"/p/{project.slug}"
    urls = [f"{base}/runs/{run}/", f"{base}/sessions/{session}/"]
    few = [len(counted(client, url)) for url in urls]
    append(api, session, 50)
    steps = [{"tool": "more", "depends_on": []} for _ in range(20)]
    body = {"append": steps, "plan_version": 1}
    assert api.post(f"/api/v1/runs/{run}/plan", body).status_code == 200
    many = [len(counted(client, url)) for url in urls]
    assert many == few and max(many) <= 25


def test_the_tree_costs_one_query_however_deep(api, client, project):
    session, run = furnish(api, 1)
    url = f"/p/{project.slug}/runs/{run}/"
    alone = counted(client, url)
    parent = run
    for number in range(4):
        body = {"agent": f"helper-{number}", "task": "look into it"}
        made = api.post(f"/api/v1/runs/{parent}/handoffs", body)
        assert made.status_code == 201, made
        parent = made.json["child_run"]
    assert len(counted(client, url)) == len(alone)
    html = client.get(f"/p/{project.slug}/runs/{parent}/").content.decode()
    assert 'data-depth="4"' in html and run in html
    assert "handed over, offered" in html
