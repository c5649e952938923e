"""Migrations are not taken back where that would lose something."""

import psycopg
import pytest

from agentstate.ids import new_id
from tests import services
from tests.ops.test_upgrade import done, manage

BACK = ("migrate", "sessions_app", "0010")


@pytest.fixture
def database_name():
    return f"back_{new_id().hex}"


@pytest.fixture
def environment(database_name):
    return {"DATABASE_URL": services.migrated_database(database_name)}


def applied(admin):
    """The newest of our migrations, and whether events say where payloads lie."""
    names = admin.execute(
        "SELECT name FROM django_migrations WHERE app = 'sessions_app' ORDER BY name"
    ).fetchall()
    found = admin.execute(
        "SELECT FROM information_schema.columns"
        " WHERE table_name = 'agent_events' AND column_name = 'blob_id'"
    ).fetchone()
    return names[-1][0][:4], found is not None


def test_payloads_in_the_store_are_never_orphaned(environment, database_name):
    with psycopg.connect(services.admin_url(database_name), autocommit=True) as admin:
        # As if it had been moved, past the triggers that keep the log.
        admin.execute("SET session_replication_role = replica")
        admin.execute(
            "INSERT INTO agent_events (project_id, session_id, seq, event_id, type,"
            " payload, payload_bytes, actor, created_at, gen, xid, blob_id)"
            " SELECT u, u, 1, u, 'acme.x', '{}', 2, 'test', now(), 0,"
            " pg_current_xact_id(), u FROM gen_random_uuid() u"
        )
        going = manage(environment, *BACK)
        said, _ = going.communicate(timeout=200)
        assert going.returncode != 0
        assert "the payloads of 1 events lie in the store" in said
        assert applied(admin) == ("0011", True)
        done(manage(environment, "migrate"))

        admin.execute("UPDATE agent_events SET blob_id = NULL")
        done(manage(environment, *BACK))
        assert applied(admin) == ("0010", False)
        done(manage(environment, "migrate"))
        assert applied(admin)[1]


FUNCTIONS = """
SELECT p.oid::regprocedure::text, pg_get_functiondef(p.oid)
  FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname = 'public' AND p.proname LIKE 'agentstate\\_%' AND p.prokind = 'f'
"""


def test_a_migration_of_functions_puts_back_what_it_replaced(database_name):
    environment = {"DATABASE_URL": services.another_database(database_name)}
    found = []
    for target in ("0017", "0018", "0017", "0018"):
        done(manage(environment, "migrate", "runs_app", target))
        with psycopg.connect(services.admin_url(database_name)) as admin:
            found.append(dict(admin.execute(FUNCTIONS).fetchall()))
    before, after, back, again = found
    assert (back, again) == (before, after)
    assert before != after
