"""Filters kept under a name: whose they are, and what becomes of them."""

import re

import pytest

from access_app.models import SavedView
from tests.people import make_session


@pytest.fixture
def keep(project):
    def send(client, name="Mine", query="state=failed", page="runs", **fields):
        form = {"page": page, "name": name, "query": query, **fields}
        return client.post(f"/p/{project.slug}/views/", form, follow=True)

    return send


def tabs(client, project, page="runs", query=""):
    html = client.get(f"/p/{project.slug}/{page}/{query}").content.decode()
    found = re.search(r'aria-label="Views">(.*?)</nav>', html, re.S)
    return found[1] if found else ""


def test_a_view_is_kept_opened_and_deleted_without_script(browse, project, keep):
    client = browse("viewer")
    page = client.get(f"/p/{project.slug}/runs/?state=failed&agent=a%26b&cursor=")
    query = re.search(r'name="query" value="([^"]*)"', page.content.decode())[1]
    answer = keep(client, "Bad <ones>", query.replace("&amp;", "&"))
    assert answer.redirect_chain == [
        (f"/p/{project.slug}/runs/?agent=a%26b&state=failed", 302)
    ]
    shown = tabs(client, project, query="?state=failed&agent=a%26b")
    link = '<a href="?agent=a%26b&amp;state=failed" aria-current="page">'
    assert f"{link}<bdi>Bad &lt;ones&gt;</bdi></a>" in shown
    html = client.get(f"/p/{project.slug}/runs/").content.decode()
    [url] = re.findall(r'action="([^"]*/views/[^"]*/delete/)"', html)
    client.post(url)
    assert "Bad" not in tabs(client, project)


def test_sessions_have_views_too(api, browse, project, keep):
    make_session(api, agent="billing")
    client = browse("viewer")
    keep(client, "Billing", "agent=billing&q=&status=open", "sessions")
    assert 'href="?agent=billing&amp;status=open"' in tabs(client, project, "sessions")
    assert "Billing" not in tabs(client, project, "runs")


def test_the_same_name_again_replaces(browse, project, keep):
    client = browse("viewer")
    keep(client, "Mine", "state=failed")
    keep(client, " Mine ", "state=running&cursor=abc")
    [view] = SavedView.objects.filter(project=project)
    assert (view.name, view.query) == ("Mine", "state=running")


def test_ones_own_views_are_nobody_elses(browse, project, keep):
    client, colleague = browse("operator"), browse("owner")
    keep(client, "Private")
    assert "Private" not in tabs(colleague, project)
    [view] = SavedView.objects.filter(project=project)
    url = f"/p/{project.slug}/views/{view.id}/delete/"
    colleague.post(url)
    assert SavedView.objects.filter(project=project).exists()
    keep(colleague, "Private", "state=running")
    assert SavedView.objects.filter(project=project, name="Private").count() == 2


def test_the_projects_views_are_kept_by_those_who_steer(
    api, browse, project, other_project, keep
):
    viewer, operator = browse("viewer"), browse("operator")
    assert keep(viewer, "Shared", shared="on").status_code == 403
    keep(operator, "Shared", shared="on")
    assert "Shared" in tabs(viewer, project)
    [view] = SavedView.objects.filter(project=project)
    stranger = browse("owner", project=other_project)
    for client, slug in ((viewer, project.slug), (stranger, other_project.slug)):
        client.post(f"/p/{slug}/views/{view.id}/delete/")
        assert SavedView.objects.filter(pk=view.pk).exists()
    operator.post(f"/p/{project.slug}/views/{view.id}/delete/")
    assert not SavedView.objects.filter(pk=view.pk).exists()
    entries = api.get("/api/v1/audit").json["items"]
    actions = [e["action"] for e in entries if e["object"] == f"view:{view.id}"]
    assert actions == ["view.deleted", "view.saved"]


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"page": "memory"}, "no saved views"),
        ({"name": " "}, "at most 80"),
        ({"name": "x" * 81}, "at most 80"),
        ({"query": "cursor=x&q="}, "nothing to keep"),
        ({"query": "q=" + "x" * 2000}, "too long"),
    ],
)
def test_what_cannot_be_kept_is_said(browse, project, keep, fields, detail):
    answer = keep(browse("viewer"), **fields)
    assert detail in answer.content.decode()
    assert not SavedView.objects.filter(project=project).exists()


def test_there_is_a_limit_for_each_person(browse, project, keep, monkeypatch):
    monkeypatch.setattr("access_app.saved_views.MOST", 2)
    client = browse("operator")
    for name in "abc":
        keep(client, name)
    assert SavedView.objects.filter(project=project).count() == 2
    keep(client, "a", "state=running")  # one that is there may change
    keep(client, "c", shared="on")  # the project's count for themselves
    assert SavedView.objects.filter(project=project).count() == 3


def test_reviewers_and_strangers_keep_none(browse, project, other_project, keep):
    assert keep(browse("reviewer")).status_code == 403
    assert keep(browse("owner", project=other_project)).status_code == 404


def test_older_pages_keep_all_states(api, browse, project, monkeypatch):
    monkeypatch.setattr("runs_app.views.LIST_PAGE", 1)
    for _ in range(2):
        api.post("/api/v1/runs", {"session_key": "s", "steps": [{"tool": "x"}]})
    html = browse("viewer").get(f"/p/{project.slug}/runs/?state=queued&state=running")
    [older] = re.findall(r'<p class="more"><a href="([^"]*)"', html.content.decode())
    assert "state=queued" in older and "state=running" in older


def test_forgetting_a_subject_deletes_the_views_that_name_it(
    api, browse, project, keep
):
    client = browse("operator")
    for name, query in (
        ("hers", "subject=maya%40example.test"),
        ("Maya@Example.test", "status=open"),
        ("others", "subject=u-2"),
    ):
        keep(client, name, query, "sessions")
    fact = {"subject": "maya@example.test", "fact": "Likes tea"}
    api.post("/api/v1/memory", fact)
    body = {"reason": "asked", "dry_run": False}
    answer = api.post("/api/v1/subjects/maya@example.test/forget", body)
    assert answer.status_code == 200, answer.json
    assert [view.name for view in SavedView.objects.filter(project=project)] == [
        "others"
    ]
