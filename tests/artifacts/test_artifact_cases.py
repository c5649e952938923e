"""The artifact cases: each a fault seen elsewhere, by its id."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from django.db import connection

from sessions_app.projection import differences_of
from tests.artifacts.calls import (
    content,
    delete,
    folder,
    listed,
    objects,
    sha256,
    stored,
    upload,
)
from tests.factories import MISSING, error_of, make_session
from tests.fixtures import issue_key

BAD_SESSIONS = [
    "..%2F..%2Fetc",
    "a/../../b",
    "a\\..\\b",
    "%00",
    ".",
    "",
    "s-1%2F..%2Fs-2",
    MISSING,
]


@pytest.mark.parametrize("session_id", BAD_SESSIONS)
def test_ar_01_a_path_in_an_id_reaches_nothing(api, session, project, session_id):
    mine = stored(session, b"mine", "passwd")
    before = objects(project)
    url = f"/api/v1/sessions/{session_id}/artifacts"
    put = api.request("POST", url, data=b"x", params={"name": "passwd"})
    assert put.status_code in (404, 422), put
    assert api.get(url).status_code in (404, 422)
    for method in ("GET", "DELETE"):
        path = f"/api/v1/artifacts/{session_id}"
        if session_id:  # without one it is the list
            assert api.request(method, path).status_code in (404, 405, 422)
        assert api.request(method, f"{path}/content").status_code in (404, 405, 422)
    assert objects(project) == before
    assert content(api, mine).content == b"mine"


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "a/b",
        "a\\b",
        ".",
        "..",
        "a\0b",
        "a\r\nX: y",
        " ",
        "\u202egpj",
        "\u200f",
        "\ufeff\u3000",
    ],
)
def test_ar_01_a_name_is_no_path(session, project, name):
    refused = upload(session, b"x", name)
    assert error_of(refused) == (422, "invalid", "name") or refused.status_code == 422
    assert objects(project) == []
    assert session.get()["last_seq"] == 0
    session.append("goes on")


def test_ar_01_the_place_is_made_of_our_own_ids(api, project):
    session = make_session(api, subject="../u-200", key="../../etc")
    stored(session, b"x", "passwd")
    [path] = objects(project)
    parts = path.relative_to(folder(project)).parts
    assert "passwd" not in path.name and ".." not in parts
    assert path.stat().st_mode & 0o077 == 0


def test_ar_03_one_name_replaces_nothing(api):
    one = make_session(api, subject="u-100")
    two = make_session(api, subject="u-200")
    stored(one, b"AAA", "chart.png")
    stored(two, b"BBB", "chart.png")
    stored(one, b"CCC", "chart.png")

    def versions(session):
        items = listed(session, name="chart.png")
        return {a["version"]: content(api, a).content for a in items}

    assert versions(one) == {1: b"AAA", 2: b"CCC"}
    assert versions(two) == {1: b"BBB"}
    [latest] = listed(one, name="chart.png", limit=1)
    assert content(api, latest).content == b"CCC"
    [first] = listed(one, name="chart.png", version=1)
    assert content(api, first).content == b"AAA"


def test_ar_04_twenty_writers_of_one_name(server, api, session, project):
    key = issue_key(project)

    def put(number):
        return httpx.post(
            f"{server.base_url}{session.url}/artifacts",
            params={"name": "report.md"},
            content=f"writer {number:02}".encode(),
            headers={"Authorization": f"Bearer {key}", "Content-Type": "text/markdown"},
            timeout=60,
        )

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(put, range(20)))
    assert {answer.status_code for answer in answers} == {201}
    items = listed(session, name="report.md")
    assert sorted(item["version"] for item in items) == list(range(1, 21))
    bodies = {content(api, item).content for item in items}
    assert bodies == {f"writer {number:02}".encode() for number in range(20)}
    assert all(sha256(content(api, i).content) == i["sha256"] for i in items)
    assert list(differences_of(project.id, session.id)) == []


def test_ar_05_equal_bytes_outlive_the_other_record(api, project):
    one = make_session(api, subject="u-100")
    two = make_session(api, subject="u-200")
    a, b = stored(one, b"same", "x.pdf"), stored(two, b"same", "y.pdf")
    assert a["sha256"] == b["sha256"]
    assert len(objects(project)) == 1
    assert delete(api, a).status_code == 204
    assert content(api, a).status_code == 404
    assert delete(api, a).status_code == 404
    assert content(api, b).content == b"same"
    assert delete(api, b).status_code == 204
    assert objects(project) == []
    connection.close()


@pytest.mark.parametrize(
    ("name", "media_type", "body"),
    [
        ("page.html", "text/html", b"<script>fetch('/v1/keys')</script>"),
        (
            "drawing.svg",
            "image/svg+xml",
            b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
        ),
        ("code.js", "text/javascript", b"alert(1)"),
        ("page.xhtml", "application/xhtml+xml; charset=utf-8", b"<x/>"),
    ],
)
def test_ar_06_nothing_runs_in_our_origin(api, session, name, media_type, body):
    artifact = stored(session, body, name, media_type=media_type)
    assert artifact["media_type"] == media_type
    answer = content(api, artifact)
    assert answer.content == body
    assert answer.headers["Content-Disposition"].startswith("attachment")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Content-Type"] == "application/octet-stream"
