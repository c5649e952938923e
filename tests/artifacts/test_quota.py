"""How much a project may keep in the store: counted in one place, never exceeded."""

import pytest
from django.db import connection, transaction

from sessions_app.artifacts.quota import (
    PROJECT_LIMIT,
    fold_counts,
    limit_project,
    usage_of,
)
from sessions_app.models import Blob, StoredBytes
from tests.concurrency.racing import at_once
from tests.factories import make_session

KB = 1000


@pytest.fixture
def session(api):
    return make_session(api)


def limit(project, most):
    limit_project(project.id, most, actor="test", reason="t")


def upload(session, data, name="a.bin", **headers):
    return session.api.post(
        f"{session.url}/artifacts", data=data, params={"name": name}, headers=headers
    )


def counted(project):
    """What is counted, which is what there is."""
    stored = usage_of(project.id).stored
    assert stored == sum(
        Blob.objects.filter(project_id=project.id).values_list("size", flat=True)
    )
    return stored


def refusal(answer):
    assert answer.status_code == 413, answer
    assert answer.headers["Content-Type"] == "application/problem+json"
    body = answer.json
    assert body["code"] == "storage_quota_exceeded"
    return body["limit_bytes"], body["stored_bytes"], body["size_bytes"]


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "k-1"}])
def test_what_has_no_room_is_refused_with_the_limit(session, project, headers):
    limit(project, 5 * KB)
    assert upload(session, b"a" * 3 * KB).status_code == 201
    again = upload(session, b"b" * 3 * KB, **headers)
    assert refusal(again) == (5 * KB, 3 * KB, 3 * KB)
    assert counted(project) == 3 * KB
    assert [e["type"] for e in session.events()].count("artifact.created") == 1
    assert upload(session, b"c" * 2 * KB).status_code == 201


def test_bytes_that_are_there_need_no_room(session, project):
    limit(project, 3 * KB)
    key = {"Idempotency-Key": "k-1"}
    first = upload(session, b"a" * 3 * KB, **key)
    assert upload(session, b"a" * 3 * KB, **key).json == first.json
    copy = upload(session, b"a" * 3 * KB, "b.bin", **{"Idempotency-Key": "k-2"})
    assert copy.status_code == 201
    assert counted(project) == 3 * KB


def test_deleting_makes_room(session, project):
    limit(project, 3 * KB)
    made = upload(session, b"a" * 3 * KB).json
    refusal(upload(session, b"b" * 3 * KB))
    session.api.delete(f"/api/v1/artifacts/{made['id']}")
    assert counted(project) == 0
    assert upload(session, b"b" * 3 * KB).status_code == 201
    session.api.delete(session.url)
    assert counted(project) == 0


def test_large_payloads_count_and_are_never_refused(session, project):
    session.append("x" * 200 * KB)
    assert counted(project) > 200 * KB
    limit(project, 100 * KB)
    session.append("y" * 200 * KB)
    refusal(upload(session, b"a"))
    assert counted(project) > 400 * KB


def test_the_lower_limit_holds(session, project, settings):
    settings.STORAGE_LIMIT_BYTES = 2 * KB
    assert refusal(upload(session, b"a" * 3 * KB))[0] == 2 * KB
    limit(project, 9 * KB)
    assert refusal(upload(session, b"a" * 3 * KB))[0] == 2 * KB
    limit(project, KB)
    assert refusal(upload(session, b"a" * 3 * KB))[0] == KB
    limit(project, None)
    settings.STORAGE_LIMIT_BYTES = 0
    assert upload(session, b"a" * 3 * KB).status_code == 201


@pytest.mark.parametrize("wrong", ["much", -1, True, 1.5, None])
def test_a_setting_that_is_no_size_is_no_limit(session, project, wrong):
    body = {"settings": {PROJECT_LIMIT: wrong}}
    assert session.api.patch("/api/v1/project", body).status_code == 200
    assert usage_of(project.id).limit is None
    assert upload(session, b"a").status_code == 201


def test_uploads_at_the_same_moment_never_exceed_it(api, project):
    limit(project, 10 * KB)
    sessions = [make_session(api) for _ in range(6)]
    calls = [
        lambda s=s, n=n: upload(s, bytes([n]) * 3 * KB).status_code
        for n, s in enumerate(sessions)
    ]
    answers = at_once(*calls)
    assert sorted(answers) == [201] * 3 + [413] * 3
    assert counted(project) == 9 * KB


def test_what_is_rolled_back_counts_nothing(session, project):
    with pytest.raises(RuntimeError), transaction.atomic():
        Blob.objects.create(
            project_id=project.id, sha256="0" * 64, size=5, object_id=project.id
        )
        raise RuntimeError
    assert counted(project) == 0


def test_counts_are_folded(session, project):
    for n in range(5):
        upload(session, bytes([n]) * 10, f"{n}.bin")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO agent_stored_bytes (project_id, bytes)"
            " SELECT %s, x FROM generate_series(1, 300) n, unnest(ARRAY[n, -n]) x",
            [project.id],
        )
    fold_counts()
    assert StoredBytes.objects.filter(project_id=project.id).count() == 1
    assert counted(project) == 50


def test_a_link_of_this_server_ends_with_what_it_leads_to(session, anonymous):
    made = upload(session, b"a").json
    link = session.api.get(f"/api/v1/artifacts/{made['id']}/link").json
    path = link["url"].removeprefix("http://testserver")
    assert anonymous.get(path).content == b"a"
    session.api.delete(f"/api/v1/artifacts/{made['id']}")
    assert anonymous.get(path).status_code == 404
