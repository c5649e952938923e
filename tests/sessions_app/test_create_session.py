"""POST /sessions: create by key."""

import threading

import pytest
from django.db import connection

from sessions_app.models import Session
from tests.factories import SESSIONS, SessionApi, error_of, key_header
from tests.fixtures import Api


def test_a_new_session_is_201_whole_with_its_version_as_etag(api):
    fields = {
        "key": "order-1042",
        "agent": "support",
        "subject": "u-100",
        "title": "Where is my order?",
        "labels": {"channel": "chat"},
        "metadata": {"n": [1, None]},
        "state": {"step": "identify"},
        "expires_at": "2999-01-01T00:00:00.000000Z",
    }
    answer = api.post(SESSIONS, fields)
    assert answer.status_code == 201
    made = answer.json
    assert {name: made[name] for name in fields} == fields
    assert (made["status"], made["version"], made["last_seq"]) == ("open", 1, 1)
    assert answer.headers["ETag"] == '"1"'
    assert api.get(f"{SESSIONS}/{made['id']}").json == made


def test_the_same_key_again_is_the_same_session(api):
    first = api.post(SESSIONS, {"key": "k", "agent": "a", "state": {"n": 1}})
    again = api.post(SESSIONS, {"key": "k", "title": "other", "state": {"n": 2}})
    assert again.status_code == 200
    assert again.json == first.json
    assert SessionApi(api, first.json["id"]).get("/state")["state"] == {"n": 1}


@pytest.mark.parametrize("field", ["subject", "agent"])
def test_a_key_of_another_subject_or_agent_is_409(api, field):
    api.post(SESSIONS, {"key": "k", "subject": "u-1", "agent": "a"})
    answer = api.post(SESSIONS, {"key": "k", field: "other"})
    assert (answer.status_code, answer.json["code"]) == (409, "session_key_taken")
    assert answer.json["differing"] == [field]
    assert Session.objects.get(key="k", project_id=project_of(api)).subject == "u-1"


def project_of(api):
    from access_app.models import ApiKey

    return ApiKey.objects.get(prefix=api.key.split("_")[1]).project_id


def test_keys_belong_to_their_project(api, other_api):
    mine = api.post(SESSIONS, {"key": "k"})
    theirs = other_api.post(SESSIONS, {"key": "k"})
    assert theirs.status_code == 201
    assert theirs.json["id"] != mine.json["id"]


def test_sessions_without_a_key_are_each_their_own(api):
    assert api.post(SESSIONS, {}).json["id"] != api.post(SESSIONS, {}).json["id"]
    assert api.post(SESSIONS, {"key": None}).status_code == 201


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ([], "$"),
        ({"name": "x"}, "name"),
        ({"key": 5}, "key"),
        ({"key": ""}, "key"),
        ({"key": "x" * 256}, "key"),
        ({"key": "a\0b"}, "key"),
        ({"subject": None}, "subject"),
        ({"labels": {"a": 5}}, "labels.a"),
        ({"labels": {str(n): "" for n in range(33)}}, "labels"),
        ({"labels": []}, "labels"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"a": "x" * 65_536}}, "metadata"),
        ({"state": [1]}, "state"),
        ({"expires_at": "tomorrow"}, "expires_at"),
        ({"expires_at": "2999-01-01T00:00:00"}, "expires_at"),
    ],
)
def test_a_wrong_field_is_422_with_its_path(api, project, body, path):
    answer = api.post(SESSIONS, body)
    assert error_of(answer) == (422, "invalid", path)
    assert not Session.objects.filter(project_id=project.id).exists()


def test_a_state_over_the_limit_is_413_and_makes_no_session(api, project, settings):
    settings.STATE_MAX_BYTES = 1000
    answer = api.post(SESSIONS, {"state": {"a": "x" * 1000}})
    assert (answer.status_code, answer.json["code"]) == (413, "state_too_large")
    assert not Session.objects.filter(project_id=project.id).exists()


def test_a_retried_creation_makes_one_session(api, project):
    headers = key_header()
    first = api.post(SESSIONS, {"title": "x"}, headers=headers)
    again = api.post(SESSIONS, {"title": "x"}, headers=headers)
    assert (again.status_code, again.json) == (201, first.json)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.headers["ETag"] == first.headers["ETag"]
    assert Session.objects.filter(project_id=project.id).count() == 1


def test_of_20_creations_of_one_key_at_once_one_makes_it(api, project):
    barrier = threading.Barrier(20)
    answers = []

    def create():
        barrier.wait(30)
        answers.append(api.post(SESSIONS, {"key": "same", "state": {"n": 1}}))
        connection.close()

    threads = [threading.Thread(target=create) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statuses = sorted(answer.status_code for answer in answers)
    assert statuses == [200] * 19 + [201]
    assert len({answer.json["id"] for answer in answers}) == 1
    assert Session.objects.filter(project_id=project.id).count() == 1


def test_a_key_that_is_erased_meanwhile_is_free_again(api):
    """Creating and erasing one key at once: never an error of the server."""
    barrier = threading.Barrier(2)
    answers = []

    def create():
        for _ in range(40):
            answers.append(api.post(SESSIONS, {"key": "same"}))
        connection.close()

    def erase():
        barrier.wait(30)
        for _ in range(40):
            found = api.get(SESSIONS, params={"key": "same"}).json["items"]
            for item in found:
                answers.append(api.delete(f"{SESSIONS}/{item['id']}"))
        connection.close()

    def create_too():
        barrier.wait(30)
        create()

    threads = [threading.Thread(target=t) for t in (create_too, erase)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} <= {200, 201, 204, 404}


def test_a_key_bound_to_a_subject_creates_for_that_subject_only(api, make_key):
    bound = Api(make_key(subject="u-1"))
    assert bound.post(SESSIONS, {}).json["subject"] == "u-1"
    assert bound.post(SESSIONS, {"subject": "u-1"}).status_code == 201
    assert bound.post(SESSIONS, {"subject": "u-2"}).status_code == 403
    api.post(SESSIONS, {"key": "of-u-2", "subject": "u-2"})
    taken = bound.post(SESSIONS, {"key": "of-u-2"})
    assert (taken.status_code, taken.json["code"]) == (409, "session_key_taken")
    assert "id" not in taken.json


def test_cc_10_a_write_for_another_owner_changes_nothing(api, project):
    made = api.post(SESSIONS, {"key": "s-1", "subject": "u-100", "state": {"a": 0}})
    other = api.post(SESSIONS, {"key": "s-1", "subject": "u-200", "state": {"a": 1}})
    assert other.status_code == 409
    body = {"state": {"a": 1}, "subject": "u-200", "expected_version": 1}
    answer = api.put(f"{SESSIONS}/{made.json['id']}/state", body)
    assert error_of(answer) == (422, "invalid", "subject")
    missing = api.put(
        f"{SESSIONS}/{made.json['id']}/state",
        {"state": {"a": 2}, "expected_version": 1},
    )
    assert missing.status_code == 200
    stored = Session.objects.get(project_id=project.id)
    assert (stored.subject, stored.state) == ("u-100", {"a": 2})
