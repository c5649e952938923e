"""The audit log: read by GET /api/v1/audit, and only ever added to."""

import psycopg
import pytest
from django.db import connection, transaction
from django.db.utils import IntegrityError

from access_app.models import AuditEntry
from access_app.services import record_audit
from agentstate.ids import new_id
from tests import services
from tests.fixtures import Api
from tests.queries import CallQueries

URL = "/api/v1/audit"


def add(project, n=1, **fields):
    wanted = {"actor": "user:maya", "action": "thing.done", "object": "thing:1"}
    return [record_audit(project.id, **(wanted | fields)) for _ in range(n)]


def test_it_is_newest_first_and_goes_on_by_cursor(api, project):
    made = [str(entry.id) for entry in add(project, 5)]
    first = api.get(URL, params={"limit": 2}).json
    second = api.get(URL, params={"limit": 3, "cursor": first["next"]}).json
    assert [e["id"] for e in first["items"] + second["items"]] == made[::-1]


def test_it_shows_who_what_and_why(api, project):
    add(project, before={"a": 1}, after={"a": 2}, reason="asked by phone")
    [entry] = api.get(URL, params={"limit": 1}).json["items"]
    assert entry["actor"] == "user:maya"
    assert (entry["before"], entry["after"]) == ({"a": 1}, {"a": 2})
    assert entry["reason"] == "asked by phone"


@pytest.mark.parametrize("name", ["actor", "action", "object"])
def test_it_filters(api, project, name):
    add(project, 2)
    [wanted] = add(project, **{name: "other.one:2"})
    found = api.get(URL, params={name: "other.one:2"}).json["items"]
    assert [e["id"] for e in found] == [str(wanted.id)]


def test_it_holds_nothing_of_another_project(other_api, project):
    [entry] = add(project)
    assert str(entry.id) not in other_api.get(URL).content.decode()


def test_the_list_costs_one_query_whatever_its_length(api, project):
    add(project, 3)
    api.get(URL)
    with CallQueries() as queries:
        assert len(api.get(URL).json["items"]) >= 3
    assert len(queries) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE access_audit SET reason = 'x' WHERE id = %(id)s",
        "DELETE FROM access_audit WHERE id = %(id)s",
        "TRUNCATE access_audit",
    ],
)
@pytest.mark.parametrize("role", ["application", "superuser"])
def test_the_database_refuses_every_other_change(project, statement, role):
    [entry] = add(project, reason="true")
    if role == "application":
        with (
            pytest.raises(IntegrityError, match="append-only"),
            transaction.atomic(),
            connection.cursor() as cursor,
        ):
            cursor.execute(statement, {"id": entry.id})
    else:
        address = services.admin_url(connection.settings_dict["NAME"])
        with (
            pytest.raises(psycopg.errors.RestrictViolation),
            psycopg.connect(address) as admin,
        ):
            admin.execute(statement, {"id": entry.id})
    entry.refresh_from_db()
    assert entry.reason == "true"


@pytest.mark.parametrize(
    "trick",
    [
        "SET LOCAL agentstate.erasing = 'on'; UPDATE access_audit SET reason = ''",
        "UPDATE access_audit SET reason = 'agentstate_redact_audit(uuid, uuid[])'",
        """
        CREATE FUNCTION pg_temp.agentstate_redact_audit(uuid) RETURNS void
        LANGUAGE plpgsql AS $$ BEGIN UPDATE access_audit SET reason = ''; END $$;
        SELECT pg_temp.agentstate_redact_audit(NULL)
        """,
    ],
)
def test_only_the_function_itself_opens_the_way(project, trick):
    add(project, reason="true")
    with (
        pytest.raises(IntegrityError, match="append-only"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(trick)


def test_redaction_takes_the_text_and_leaves_the_deed(project, other_project):
    said = {"before": {"name": "Ada"}, "after": {"name": "Eve"}, "reason": "asked"}
    [mine] = add(project, **said)
    [theirs] = add(other_project, **said)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT agentstate_redact_audit(%s, %s)", [project.id, [mine.id, theirs.id]]
        )
        assert cursor.fetchone() == (1,)
    redacted = AuditEntry.objects.get(pk=mine.id)
    assert (redacted.before, redacted.after, redacted.reason) == (None, None, "")
    assert redacted.actor == "user:maya"
    assert AuditEntry.objects.get(pk=theirs.id).reason == "asked"


class TestRefusals:
    def refused(self, project):
        found = AuditEntry.objects.filter(
            project_id=project.id, action="access.refused"
        )
        return [(entry.object, entry.after) for entry in found.order_by("id")]

    def test_a_change_without_the_scope_is_noted_once(self, project, make_key):
        reader = Api(make_key(scopes=["sessions:read"]))
        for _ in range(3):
            assert reader.post("/api/v1/sessions", {}).status_code == 403
        [(named, what)] = self.refused(project)
        assert named.startswith("call:")
        assert what == {"method": "POST", "code": "missing_scope"}

    def test_what_is_not_there_is_named_by_its_id_alone(self, api, project, other_api):
        made = other_api.post("/api/v1/sessions", {}).json["id"]
        url = f"/api/v1/sessions/{made}"
        assert api.delete(url).status_code == 404
        assert api.get(url).status_code == 404  # a look is no change
        [(named, what)] = self.refused(project)
        assert named == f"session:{made}"
        assert what == {"method": "DELETE", "code": "session_not_found"}

    def test_a_call_without_a_key_leaves_nothing(self, anonymous, project):
        assert anonymous.post("/api/v1/sessions", {}).status_code == 401
        assert self.refused(project) == []

    def test_it_holds_in_the_middle_of_an_idempotent_call(self, api, project):
        headers = {"Idempotency-Key": "once"}
        url = f"/api/v1/sessions/{new_id()}/close"
        assert api.post(url, {}, headers=headers).status_code == 404
        assert len(self.refused(project)) == 1
