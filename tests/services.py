"""The services of one test process, in a temporary data folder that goes with it."""

import os
import shutil
import tempfile
from pathlib import Path

import psycopg
from psycopg import sql

from agentstate.embedded import APP_ROLE, EmbeddedServices, add_extensions

SCHEMA = "schema"

_running: EmbeddedServices | None = None


def start() -> None:
    """Start Postgres (without fsync) and Valkey, and point the environment at them."""
    global _running
    data_dir = Path(tempfile.mkdtemp(prefix="agentstate-test-"))
    _running = EmbeddedServices(data_dir, durable=False)
    addresses = _running.start()
    assert _running.postgres is not None
    os.environ |= addresses | {
        "AGENTSTATE_DATA_DIR": str(data_dir),
        "AGENTSTATE_TEST_ADMIN_URL": _running.postgres.admin_url(),
        "AGENTSTATE_DEMO": "0",
        # A busy machine is not taken for a Redis that is away.
        "AGENTSTATE_REDIS_TIMEOUT_MS": "20000",
    }


def stop() -> None:
    if _running is not None:
        _running.stop()
        shutil.rmtree(_running.data_dir, ignore_errors=True)


def make_database(name: str) -> None:
    """Make a database for the tests and point the environment at it."""
    os.environ["DATABASE_URL"] = another_database(name)


def another_database(name: str, template: str = "template1") -> str:
    """Make a database, with the extensions and nothing else, and return its address."""
    with psycopg.connect(admin_url(), autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE {}").format(
                *map(sql.Identifier, (name, APP_ROLE, template))
            )
        )
    add_extensions(admin_url(name))
    return _with_path(os.environ["DATABASE_URL"], name)


def keep_schema() -> None:
    """Keep the database as it is now, migrated and empty, for `migrated_database`."""
    another_database(SCHEMA, os.environ["DATABASE_URL"].rsplit("/", 1)[1])


def migrated_database(name: str) -> str:
    """Make a database with our schema, without the cost of migrating it."""
    return another_database(name, SCHEMA)


def admin_url(database: str = "postgres") -> str:
    """The superuser's address of a database of this process."""
    return _with_path(os.environ["AGENTSTATE_TEST_ADMIN_URL"], database)


def _with_path(url: str, path: str) -> str:
    return f"{url.rsplit('/', 1)[0]}/{path}"
