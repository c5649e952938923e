"""OP-07: pgvector may be there, or not, or not for this role to make."""

import psycopg
import pytest
from django.db import connections
from psycopg import sql

from agentstate.embedded import APP_ROLE
from memory_app import extension
from memory_app.extension import ExtensionMissing, ensure_pgvector
from tests.services import admin_url


@pytest.fixture
def bare_database(request):
    """A database of the application's role without extensions, as alias `bare`."""
    name = f"bare_{request.node.name[:20].lower()}"
    with psycopg.connect(admin_url(), autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE DATABASE {} OWNER {}").format(
                sql.Identifier(name), sql.Identifier(APP_ROLE)
            )
        )
    options = dict(connections.settings["default"]["OPTIONS"])
    options.pop("pool", None)
    connections.settings["bare"] = connections.settings["default"] | {
        "NAME": name,
        "OPTIONS": options,
    }
    yield name
    connections["bare"].close()
    del connections["bare"]
    del connections.settings["bare"]
    with psycopg.connect(admin_url(), autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))


def make_as_superuser(database):
    with psycopg.connect(admin_url(database), autocommit=True) as admin:
        admin.execute("CREATE EXTENSION vector")


def tables(alias):
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
        return cursor.fetchone()[0]


def test_op_07_refused_then_made_then_fine(bare_database):
    with pytest.raises(ExtensionMissing, match="superuser.*CREATE EXTENSION vector"):
        ensure_pgvector("bare")
    assert tables("bare") == 0
    make_as_superuser(bare_database)
    ensure_pgvector("bare")


def test_op_07_too_old_and_not_available(bare_database, monkeypatch):
    make_as_superuser(bare_database)
    monkeypatch.setattr(extension, "_installed_version", lambda using: "0.7.4")
    with pytest.raises(ExtensionMissing, match="too old.*UPDATE"):
        ensure_pgvector("bare")
    monkeypatch.setattr(extension, "_installed_version", lambda using: None)
    monkeypatch.setattr(extension, "NAME", "no_such_extension")
    with pytest.raises(ExtensionMissing, match="not installed on this Postgres"):
        ensure_pgvector("bare")
