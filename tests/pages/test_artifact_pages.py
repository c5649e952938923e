"""Pages of artifacts: the lists, one, its text as text, download and deletion."""

import pytest

from tests.artifacts.calls import content, delete, listed, objects, stored
from tests.factories import make_session


@pytest.fixture
def session(api):
    return make_session(api, title="Quarterly figures", subject="u-1")


def text_of(answer):
    return answer.content.decode()


def test_there_are_none_yet(browse, project):
    page = text_of(browse("viewer").get(f"/p/{project.slug}/artifacts/"))
    assert "No artifacts yet" in page


def test_lists_of_a_project_and_of_a_session(browse, api, project, session):
    other = make_session(api)
    mine, theirs = stored(session, b"1", "mine.txt"), stored(other, b"2", "their.txt")
    client = browse("viewer")
    url = f"/p/{project.slug}/artifacts/"
    whole = text_of(client.get(url))
    assert "mine.txt" in whole and "their.txt" in whole
    own = text_of(client.get(url, {"session": session.id}))
    assert "mine.txt" in own and "their.txt" not in own
    named = text_of(client.get(url, {"name": "THEIR"}))
    assert "mine.txt" not in named and theirs["id"] in named
    assert "No artifact fits" in text_of(client.get(url, {"name": "nothing"}))
    assert client.get(url, {"session": mine["id"]}).status_code == 404
    assert client.get(url, {"session": "x"}).status_code == 200
    assert f"?session={session.id}" in text_of(
        client.get(f"/p/{project.slug}/sessions/{session.id}/")
    )


def test_a_list_goes_on(browse, api, project, session, monkeypatch):
    monkeypatch.setattr("sessions_app.artifact_views.LIST_PAGE", 2)
    made = [stored(session, b"%d" % n, f"{n}.txt")["id"] for n in range(3)]
    client = browse("viewer")
    first = client.get(f"/p/{project.slug}/artifacts/")
    page = first.context["page"]
    assert [str(a.id) for a in page.items] == made[:0:-1]
    rest = client.get(f"/p/{project.slug}/artifacts/", {"cursor": page.next})
    assert [str(a.id) for a in rest.context["page"].items] == made[:1]


def test_a_short_text_is_shown_as_text(browse, project, session):
    harm = b"<script>alert(1)</script>"
    page = stored(session, harm, "x.html", media_type="text/html")
    picture = stored(session, harm, "x.svg", media_type="image/svg+xml")
    long = stored(session, b"word " * 20_000, "long.txt")
    client = browse("viewer")
    url = f"/p/{project.slug}/artifacts"
    shown = text_of(client.get(f"{url}/{page['id']}/"))
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert "<script>alert" not in shown
    assert "alert(1)" not in text_of(client.get(f"{url}/{picture['id']}/"))
    assert "Only short texts" in text_of(client.get(f"{url}/{long['id']}/"))


def test_ar_06_a_download_from_the_dashboard_cannot_run(browse, project, session):
    harm = b"<script>fetch('/api/v1/keys')</script>"
    page = stored(session, harm, "page.html", media_type="text/html")
    url = f"/p/{project.slug}/artifacts/{page['id']}/content"
    answer = browse("viewer").get(url)
    assert answer.getvalue() == harm
    assert answer["Content-Disposition"].startswith("attachment")
    assert answer["Content-Type"] == "application/octet-stream"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in answer["Content-Security-Policy"]


def test_a_bytes_store_that_is_away_is_said(browse, project, session):
    artifact = stored(session, b"text", "a.txt")
    objects(project)[0].unlink()
    url = f"/p/{project.slug}/artifacts/{artifact['id']}/"
    client = browse("viewer")
    assert "cannot be reached" in text_of(client.get(url))
    assert client.get(f"{url}content").status_code == 503
    stored(session, b"text", "b.txt")
    assert "cannot be reached" not in text_of(client.get(url))


def test_who_may_delete(browse, api, project, session):
    artifact = stored(session, b"text", "a.txt")
    url = f"/p/{project.slug}/artifacts/{artifact['id']}/delete/"
    assert browse("viewer").post(url, {"reason": "r"}).status_code == 403
    browse("operator").post(url, {"reason": ""})
    assert len(listed(session)) == 1
    browse("operator").post(url, {"reason": "was wrong"})
    assert listed(session) == [] and objects(project) == []
    [entry] = api.get("/api/v1/audit", params={"action": "artifact.deleted"}).json[
        "items"
    ]
    assert entry["object"] == f"artifact:{artifact['id']}"
    assert entry["reason"] == "was wrong" and entry["actor"].startswith("user:")
    assert content(api, artifact).status_code == 404
    assert delete(api, artifact).status_code == 404


def test_another_projects_artifacts_are_not_there(browse, session, other_project):
    artifact = stored(session, b"text", "a.txt")
    stranger = browse("owner", project=other_project)
    base = f"/p/{other_project.slug}/artifacts/{artifact['id']}/"
    for path in ("", "content"):
        assert stranger.get(base + path).status_code == 404
    stranger.post(f"{base}delete/", {"reason": "r"})
    assert len(listed(session)) == 1


def test_a_viewer_without_payloads_sees_no_files(browse, project, session):
    from access_app.roles import HIDE_FROM_VIEWERS

    artifact = stored(session, b"text", "a.txt")
    project.settings[HIDE_FROM_VIEWERS] = True
    project.save()
    client = browse("viewer")
    for path in ("", f"{artifact['id']}/", f"{artifact['id']}/content"):
        assert client.get(f"/p/{project.slug}/artifacts/{path}").status_code == 403


def test_the_settings_tell_the_storage_and_its_limit(browse, project, api):
    from tests.factories import make_session

    session = make_session(api)
    api.post(f"{session.url}/artifacts", data=b"a" * 2048, params={"name": "a"})
    owner = browse("owner")
    url = f"/p/{project.slug}/settings/storage/"
    assert url in owner.get(f"/p/{project.slug}/settings/").content.decode()
    for headers in ({}, {"HX-Request": "true"}):
        shown = owner.get(url, headers=headers).content.decode()
        assert "2.0\xa0KB" in shown and "no limit" in shown
    change = {"limit": "1.5", "reason": "to save money"}
    assert owner.post(f"{url}limit/", change).status_code == 302
    shown = owner.get(url).content.decode()
    assert "of at most 1.5\xa0MB" in shown and 'value="1.5"' in shown
    for refused in ("much", "-1", "-0.0000001", "NaN", "1e99"):
        owner.post(f"{url}limit/", change | {"limit": refused})
        assert "of at most 1.5\xa0MB" in owner.get(url).content.decode()
    owner.post(f"{url}limit/", change | {"limit": ""})
    assert "no limit" in owner.get(url).content.decode()
    assert browse("operator").get(url).status_code == 403
