"""A server whose tables are new: nothing about them is known to Postgres."""

import json
from uuid import uuid4

import psycopg
import pytest
from django.db import connection as django_connection

from agentstate.ids import new_id
from sessions_app.append import APPEND
from sessions_app.state import WRITE
from tests import services

READ = "SELECT idx_tup_fetch + seq_tup_read FROM pg_stat_xact_user_tables WHERE relname"


@pytest.fixture
def cursor(database):
    with psycopg.connect(
        services.migrated_database(f"new-{uuid4()}"),
        cursor_factory=psycopg.ClientCursor,
    ) as connection:
        yield connection.cursor()
        connection.rollback()


def copy(cursor, table, id):
    """Put a row of the tests' database into the new one."""
    with django_connection.cursor() as here:
        here.execute(f"SELECT to_jsonb(t)::text FROM {table} t WHERE id = %s", [id])
        [row] = here.fetchone()
    record = f"jsonb_populate_record(NULL::{table}, %s::jsonb)"
    cursor.execute(f"INSERT INTO {table} SELECT * FROM {record}", [row])


def append(project, session):
    event = [[new_id()], [False], ["message.user"], ['{"role":"user","content":"x"}']]
    return [project, session, *event, *[None] * 7, "t", False, *[None] * 7, 24]


def write(project, session, version):
    patch = json.dumps([])
    return [project, session, version, "{}", patch, new_id(), *[None] * 2, "t", False,
            None, None]  # fmt: skip


def test_a_plan_made_for_few_sessions_reads_one_of_many(cursor, project, session):
    """Until the tables are analysed, a new server has no other."""
    session, project = session.id, str(project.id)
    copy(cursor, "access_projects", project)
    copy(cursor, "agent_sessions", session)
    for version in range(7):  # the fifth makes a plan that is kept
        cursor.execute(APPEND, append(project, session))
        cursor.execute(WRITE, write(project, session, version))
    cursor.execute(
        "INSERT INTO agent_sessions SELECT (jsonb_populate_record("
        "s, jsonb_build_object('id', gen_random_uuid(), 'key', NULL))).*"
        " FROM agent_sessions s, generate_series(1, 1000)"
    )
    for call, arguments in (
        (APPEND, append(project, session)),
        (WRITE, write(project, session, 7)),
    ):
        before = cursor.execute(f"{READ} = 'agent_sessions'").fetchone()[0]
        outcome = cursor.execute(call, arguments).fetchone()[0]
        after = cursor.execute(f"{READ} = 'agent_sessions'").fetchone()[0]
        assert outcome in {"appended", "written"}
        assert after - before < 10


STORE = "SELECT agentstate_store_payloads(%s, %s, ARRAY[%s]::bigint[], %s, '{5}')"


def test_a_plan_made_for_a_short_log_finds_one_event_of_a_long_one(
    cursor, project, session
):
    session, project = session.id, str(project.id)
    copy(cursor, "access_projects", project)
    copy(cursor, "agent_sessions", session)
    blob = [new_id()]
    for seq in range(1, 8):  # the fifth would make a plan that is kept
        cursor.execute(APPEND, append(project, session))
        cursor.execute(STORE, [project, session, seq, blob])
    cursor.execute(
        "INSERT INTO agent_events SELECT (jsonb_populate_record(e, jsonb_build_object("
        "'id', e.id + 1000 + n, 'seq', 1000 + n, 'event_id', gen_random_uuid(),"
        " 'xid', '3'))).* FROM agent_events e, generate_series(1, 2000) AS n"
        " WHERE e.seq = 7"
    )
    cursor.execute(APPEND, append(project, session))
    before = cursor.execute(f"{READ} = 'agent_events'").fetchone()[0]
    cursor.execute(STORE, [project, session, 8, blob])
    after = cursor.execute(f"{READ} = 'agent_events'").fetchone()[0]
    assert after - before < 20  # the transaction's own eight, and one more
    count = "SELECT count(*) FROM agent_events WHERE seq < 1000 AND blob_id = %s"
    cursor.execute(count, blob)
    assert cursor.fetchone() == (8,)
