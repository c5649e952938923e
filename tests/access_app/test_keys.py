"""/api/v1/keys, and what becomes of a key's secret."""

import logging
import os
import subprocess
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from access_app.api.whoami import WhoamiView
from access_app.callers import forget_known_keys
from access_app.models import ApiKey, AuditEntry
from access_app.services import revoke_key
from agentstate.embedded import POSTGRES_BIN
from tests.fixtures import Api
from tests.queries import CallQueries

URL = "/api/v1/keys"


def make(api, **body):
    answer = api.post(URL, {"name": "k", "scopes": ["sessions:read"], **body})
    assert answer.status_code == 201, answer
    return answer.json


def test_a_new_key_works_and_is_shown_once(api):
    made = make(api, scopes=["admin", "sessions:read"])
    assert Api(made["key"]).get("/api/v1/whoami").json["key_id"] == made["id"]
    shown = api.get(f"{URL}/{made['id']}").json
    assert "key" not in shown
    assert shown.pop("last_used_at")
    assert shown.items() < made.items()


def test_the_list_is_newest_first_and_goes_on_by_cursor(api):
    made = [make(api, name=f"k{n}")["id"] for n in range(5)]
    first = api.get(URL, params={"limit": 3}).json
    second = api.get(URL, params={"limit": 3, "cursor": first["next"]}).json
    assert [k["id"] for k in first["items"] + second["items"]][:5] == made[::-1]
    assert second["next"] is None


def test_the_list_costs_one_query_whatever_its_length(api):
    for _ in range(3):
        make(api)
    api.get(URL)  # the key is known after this
    with CallQueries() as queries:
        assert len(api.get(URL).json["items"]) == 4
    assert len(queries) == 1


def test_a_key_sees_no_key_of_another_project(api, other_api):
    mine = make(api)
    for method in ("GET", "DELETE"):
        answer = other_api.request(method, f"{URL}/{mine['id']}")
        assert (answer.status_code, answer.json["code"]) == (404, "not_found")
    assert ApiKey.objects.get(pk=mine["id"]).revoked_at is None
    assert mine["id"] not in other_api.get(URL).content.decode()


def test_a_key_without_admin_is_told_what_it_lacks(make_key):
    answer = Api(make_key(["sessions:read"])).get(URL)
    assert answer.status_code == 403
    assert answer.json["code"] == "missing_scope"
    assert answer.json["scope"] == "admin"


def test_a_bound_key_never_administers(make_key):
    answer = Api(make_key(["all"], subject="user-1")).get(URL)
    assert answer.json["code"] == "missing_scope"


def test_a_key_cannot_give_scopes_it_does_not_have(make_key):
    keys = Api(make_key(["admin", "sessions:read"]))
    answer = keys.post(URL, {"scopes": ["sessions:read", "memory:forget"]})
    assert answer.status_code == 403
    assert answer.json["code"] == "scope_too_wide"
    assert answer.json["scopes"] == ["memory:forget"]
    assert keys.post(URL, {"scopes": ["all"]}).json["code"] == "scope_too_wide"


def test_a_key_cannot_make_a_key_that_outlives_it(make_key):
    until = datetime.now(UTC) + timedelta(hours=1)
    keys = Api(make_key(["admin"], expires_at=until))
    made = make(keys, scopes=["admin"])
    assert datetime.fromisoformat(made["expires_at"]) == until
    later = (until + timedelta(seconds=1)).isoformat()
    answer = keys.post(URL, {"scopes": ["admin"], "expires_at": later})
    assert answer.json["errors"][0]["code"] == "too_late"


@pytest.mark.parametrize(
    ("body", "path", "code"),
    [
        ({}, "scopes", "required"),
        ({"scopes": []}, "scopes", "min_length"),
        ({"scopes": ["sessions:own"]}, "scopes[0]", "invalid_choice"),
        ({"scopes": ["all", 7]}, "scopes[1]", "wrong_type"),
        ({"scopes": "all"}, "scopes", "not_a_list"),
        ({"scopes": ["all"], "scope": "x"}, "scope", "unknown_field"),
        ({"scopes": ["all"], "name": 5}, "name", "wrong_type"),
        ({"scopes": ["all"], "name": "\0"}, "name", "null_characters_not_allowed"),
        ({"scopes": ["all"], "rate_limit_per_minute": -1}, None, "min_value"),
        ({"scopes": ["all"], "rate_limit_per_minute": True}, None, "wrong_type"),
        ({"scopes": ["all"], "session_id": "s-1"}, "session_id", "invalid"),
        ({"scopes": ["all"], "expires_at": "2001-01-01T00:00:00Z"}, None, None),
        (["all"], "$", "invalid"),
    ],
)
def test_a_wrong_body_is_422_with_its_path(api, project, body, path, code):
    answer = api.post(URL, body)
    assert answer.status_code == 422
    error = answer.json["errors"][0]
    assert path in (None, error["path"])
    assert code in (None, error["code"])
    assert ApiKey.objects.in_project(project.id).count() == 1


def test_revoking_stops_the_key_and_is_audited(api, project):
    made = make(api)
    first = api.delete(f"{URL}/{made['id']}")
    assert first.status_code == 200
    assert first.json["revoked_at"]
    assert api.delete(f"{URL}/{made['id']}").json == first.json
    forget_known_keys()
    assert Api(made["key"]).get("/api/v1/whoami").status_code == 401
    actions = AuditEntry.objects.in_project(project.id).filter(
        object=f"key:{made['id']}"
    )
    assert sorted(actions.values_list("action", flat=True)) == [
        "key.created",
        "key.revoked",
    ]


def test_an_expired_key_is_401_by_the_database_clock(make_key, clock):
    caller = Api(make_key(expires_in=timedelta(hours=1)))
    assert caller.get("/api/v1/whoami").status_code == 200
    clock.advance(seconds=3601)
    forget_known_keys()
    assert caller.get("/api/v1/whoami").status_code == 401


def test_the_list_shows_the_last_use_written_once_a_minute(api, project, clock):
    made = make(api, scopes=["admin"])
    used = Api(made["key"])
    used.get("/api/v1/whoami")
    first = ApiKey.objects.get(pk=made["id"]).last_used_at
    assert first is not None
    used.get("/api/v1/whoami")
    assert ApiKey.objects.get(pk=made["id"]).last_used_at == first
    listed = {k["id"]: k for k in api.get(URL).json["items"]}
    assert listed[made["id"]]["last_used_at"] == first.isoformat().replace(
        "+00:00", "Z"
    )


def test_a_retried_creation_gives_the_same_key(api, project):
    """The answer is given again, key included, though no key lies in the database."""
    body = {"name": "once", "scopes": ["sessions:read"]}
    headers = {"Idempotency-Key": "make-key-1"}
    first = api.post(URL, body, headers=headers)
    again = api.post(URL, body, headers=headers)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert (again.status_code, again.json) == (201, first.json)
    assert ApiKey.objects.in_project(project.id).filter(name="once").count() == 1
    assert Api(again.json["key"]).get("/api/v1/whoami").status_code == 200


def test_au_07_keys_are_never_stored_or_logged(api, caplog, monkeypatch, redis):
    caplog.set_level(logging.DEBUG)
    headers = {"Idempotency-Key": "au-07"}
    with CaptureQueriesContext(connection) as queries:  # SQL is logged at debug level
        made = api.post(URL, {"scopes": ["all"]}, headers=headers).json
        Api(made["key"]).get("/api/v1/whoami")
        wrong = made["key"][:-1] + ("0" if made["key"][-1] != "0" else "1")
        assert Api(wrong).get("/api/v1/whoami").status_code == 401
        monkeypatch.setattr(WhoamiView, "get", lambda *a: 1 // 0)
        failed = Api(made["key"]).get("/api/v1/whoami")
    assert failed.status_code == 500
    assert "ZeroDivisionError" in caplog.text
    secret = made["key"].rsplit("_", 1)[1]
    places = {
        "logs": caplog.text,
        "log records": repr([vars(record) for record in caplog.records]),
        "queries": repr(queries.captured_queries),
        "500": failed.content.decode(),
        "list": api.get(URL).content.decode(),
        "admin": admin_pages(made["id"]),
        "redis": repr(sorted(redis.keys())),
        "dump": dump_of_database(),
    }
    for place, text in places.items():
        assert secret not in text, place
        assert wrong.rsplit("_", 1)[1] not in text, place
    assert made["prefix"] in places["dump"]  # it is the database that was searched


def admin_pages(key_id):
    admin, _ = User.objects.get_or_create(
        username="au-07", is_staff=True, is_superuser=True
    )
    client = Client()
    client.force_login(admin)
    pages = [
        client.get("/admin/access_app/apikey/"),
        client.get(f"/admin/access_app/apikey/{key_id}/change/"),
        client.get("/admin/access_app/auditentry/"),
    ]
    assert [page.status_code for page in pages] == [200, 200, 200]
    return "".join(page.content.decode() for page in pages)


def dump_of_database():
    return subprocess.run(
        [POSTGRES_BIN / "pg_dump", "--dbname", os.environ["DATABASE_URL"]],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def test_a_revoked_key_is_refused_by_a_service_call_too(project, make_key):
    text = make_key()
    key = ApiKey.objects.get(prefix=text.split("_")[1])
    assert revoke_key(project.id, key.id, reason="leaked").is_revoked
    entry = AuditEntry.objects.get(object=f"key:{key.id}", action="key.revoked")
    assert entry.reason == "leaked"
