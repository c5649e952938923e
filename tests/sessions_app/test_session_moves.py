"""Change, close, reopen, erase and expire a session."""

from uuid import uuid4

import pytest
from django.db import connection
from django.db.utils import ProgrammingError

from access_app.models import AuditEntry
from agentstate.clock import Now
from sessions_app.jobs import close_expired
from sessions_app.models import Event, Session, Snapshot, ToolCall
from sessions_app.services import close_if_expired
from tests.factories import (
    SESSIONS,
    SessionApi,
    calls,
    error_of,
    fetch,
    key_header,
    make_session,
    says,
)


def types_of(session):
    return [event["type"] for event in session.events()]


class TestUpdate:
    def test_changes_are_kept_and_logged_with_their_new_values(self, session):
        changes = {
            "title": "T",
            "agent": "a",
            "labels": {"x": "1"},
            "metadata": {"m": 1},
            "expires_at": "2999-01-01T00:00:00.000000Z",
        }
        answer = session.api.patch(session.url, changes)
        assert answer.status_code == 200
        assert {name: answer.json[name] for name in changes} == changes
        [event] = session.events()
        assert event["type"] == "session.updated"
        assert event["payload"] == {"changes": changes}

    def test_what_changes_nothing_is_no_event(self, session):
        session.api.patch(session.url, {"title": "T"})
        assert session.api.patch(session.url, {"title": "T"}).status_code == 200
        assert session.api.patch(session.url, {}).status_code == 200
        assert session.get()["last_seq"] == 1

    @pytest.mark.parametrize(
        "field", ["subject", "key", "status", "state", "version", "id"]
    )
    def test_what_cannot_change_is_refused(self, session, field):
        answer = session.api.patch(session.url, {field: "x", "title": "T"})
        assert error_of(answer) == (422, "invalid", field)
        assert session.get()["title"] == ""

    def test_a_closed_session_can_be_labelled(self, session):
        session.api.post(f"{session.url}/close")
        answer = session.api.patch(session.url, {"labels": {"done": "yes"}})
        assert answer.json["labels"] == {"done": "yes"}


class TestCloseAndReopen:
    def test_each_is_an_event_with_its_reason(self, session):
        closed = session.api.post(f"{session.url}/close", {"reason": "solved"})
        assert closed.json["status"] == "closed"
        assert closed.json["closed_at"]
        opened = session.api.post(f"{session.url}/reopen", {"reason": "not yet"})
        assert (opened.json["status"], opened.json["closed_at"]) == ("open", None)
        assert session.append("on").status_code == 201
        assert types_of(session) == [
            "session.closed",
            "session.reopened",
            "message.user",
        ]
        assert [p["reason"] for p in session.payloads(types="session.*")] == [
            "solved",
            "not yet",
        ]

    def test_twice_is_once(self, session):
        for path in ("close", "close", "reopen", "reopen"):
            assert session.api.post(f"{session.url}/{path}").status_code == 200
        assert types_of(session) == ["session.closed", "session.reopened"]

    def test_a_wrong_reason_is_refused(self, session):
        answer = session.api.post(f"{session.url}/close", {"reason": 5})
        assert error_of(answer) == (422, "invalid", "reason")
        assert session.get()["status"] == "open"

    def test_a_closed_session_is_read_like_any_other(self, session):
        session.append("a")
        session.api.post(f"{session.url}/close")
        assert session.payloads(types="message.*") == [{"content": "a"}]
        assert session.get("/replay", at_seq=1)["conversation"]
        assert session.put_state({"a": 1}, 0).json["code"] == "session_closed"


class TestErase:
    def test_nothing_is_left_but_a_receipt_without_content(self, session, project):
        secret = f"sentinel-{uuid4()}"
        session.append(secret, calls("c", arguments={"a": secret}))
        session.append(says(secret), headers=key_header("erase-me"))
        session.put_state({"note": secret}, 0, headers=key_header("erase-me"))
        session.api.patch(session.url, {"metadata": {"note": secret}})
        assert session.api.delete(session.url).status_code == 204
        assert session.api.get(session.url).status_code == 404
        assert session.api.get(f"{session.url}/events").status_code == 404
        assert session.append("x").json["code"] == "session_not_found"
        assert tables_holding(secret) == []
        for model in (Event, Snapshot, ToolCall):
            assert not model.objects.filter(session_id=session.id).exists()
        [entry] = AuditEntry.objects.filter(
            project_id=project.id, action="session.erased"
        )
        assert entry.object == f"session:{session.id}"

    def test_erasing_twice_is_404_and_a_retry_is_the_first_answer(self, session):
        headers = key_header()
        assert session.api.delete(session.url, headers=headers).status_code == 204
        again = session.api.delete(session.url, headers=headers)
        assert (again.status_code, again.content) == (204, b"")
        assert again.headers["Idempotency-Replayed"] == "true"
        assert session.api.delete(session.url).status_code == 404

    def test_its_key_is_free_again(self, api):
        first = make_session(api, key="k")
        api.delete(first.url)
        assert make_session(api, key="k").id != first.id


def tables_holding(text):
    found = []
    for (table,) in fetch(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    ):
        [(count,)] = fetch(
            f'SELECT count(*) FROM "{table}" t WHERE strpos(t::text, %s) > 0', text
        )
        if count:
            found.append(table)
    return found


class TestTheLogCannotBeChanged:
    @pytest.mark.parametrize(
        "statement",
        [
            "UPDATE agent_events SET payload = '{}' WHERE session_id = %s",
            "UPDATE agent_events SET seq = seq + 1 WHERE session_id = %s",
            "DELETE FROM agent_events WHERE session_id = %s",
            "WITH gone AS (DELETE FROM agent_events WHERE session_id = %s RETURNING 1)"
            " SELECT count(*) FROM gone",
            "MERGE INTO agent_events e USING (SELECT 1) AS one ON e.session_id = %s"
            " WHEN MATCHED THEN DELETE",
            "INSERT INTO agent_events SELECT * FROM agent_events WHERE session_id = %s"
            " ON CONFLICT (id) DO UPDATE SET payload = '{}'",
        ],
    )
    def test_the_database_refuses_to_change_or_delete(self, session, statement):
        session.append("a")
        with pytest.raises(ProgrammingError, match="append-only"):
            fetch(statement, session.id)
        assert session.texts() == ["a"]

    @pytest.mark.parametrize("tables", ["agent_events", "agent_sessions, agent_events"])
    def test_the_database_refuses_to_truncate(self, session, tables):
        session.append("a")
        with pytest.raises(ProgrammingError, match="append-only"):
            fetch(f"TRUNCATE {tables}")
        assert session.texts() == ["a"]

    def test_a_function_that_looks_like_the_erasing_one_is_refused(self, session):
        session.append("a")
        for name in (
            "my_agentstate_erase_session",
            '"x agentstate_erase_session(uuid)"',
        ):
            fetch(
                f"CREATE FUNCTION {name}(p uuid) RETURNS void LANGUAGE plpgsql AS"
                " $$ BEGIN DELETE FROM agent_events WHERE session_id = p; END $$"
            )
            try:
                with pytest.raises(ProgrammingError, match="append-only"):
                    fetch(f"SELECT {name}(%s)", session.id)
            finally:
                fetch(f"DROP FUNCTION {name}(uuid)")
        assert session.texts() == ["a"]

    def test_the_orm_cannot_either(self, session):
        session.append("a")
        for change in (
            lambda: Event.objects.filter(session_id=session.id).delete(),
            lambda: Event.objects.filter(session_id=session.id).update(type="x.y"),
            lambda: Event.objects.get(session_id=session.id, seq=1).delete(),
        ):
            with pytest.raises(ProgrammingError, match="append-only"):
                change()
        assert session.texts() == ["a"]


class TestExpiry:
    def test_a_session_whose_time_has_come_is_closed(self, api, clock):
        soon = (
            "SELECT to_char((agentstate_now() + interval '1 hour') AT TIME ZONE 'UTC',"
            """ 'YYYY-MM-DD"T"HH24:MI:SS"Z"')"""
        )
        [(at,)] = fetch(soon)
        due, later = make_session(api, expires_at=at), make_session(api)
        close_expired(0)
        assert due.get()["status"] == "open"
        clock.advance(seconds=3601)
        close_expired(0)
        close_expired(0)
        assert due.get()["status"] == "closed"
        assert types_of(due) == ["session.closed"]
        assert due.payloads()[0]["reason"] == "expired"
        assert later.get()["status"] == "open"

    def test_a_session_given_more_time_meanwhile_stays_open(self, session):
        """The job has listed it; before its turn comes, `expires_at` is put off."""
        session.api.patch(session.url, {"expires_at": "2999-01-01T00:00:00Z"})
        row = Session.objects.get(id=session.id)
        assert not close_if_expired(row.project_id, row.id)
        assert session.get()["status"] == "open"

    def test_the_job_reads_its_index(self):
        found = Session.objects.filter(status="open", expires_at__lte=Now())
        with connection.cursor() as cursor:
            cursor.execute("SET enable_seqscan = off")
        plan = found.explain()
        with connection.cursor() as cursor:
            cursor.execute("RESET enable_seqscan")
        assert "session_expires" in plan


def test_the_first_record_says_what_the_session_was_made_with(api):
    made = make_session(api, key="k", agent="a", metadata={"n": 1})
    [record] = made.events(after_seq=-1)
    assert (record["seq"], record["type"]) == (0, "session.created")
    assert record["payload"]["key"] == "k"
    assert record["payload"]["metadata"] == {"n": 1}
    assert made.events() == []
    assert SessionApi(api, made.id).get()["last_seq"] == 0
    assert api.get(SESSIONS, params={"key": "k"}).json["items"][0]["id"] == made.id
