"""The services of one test run, in a temporary data folder that goes with it."""

import os
import shutil
import tempfile
from pathlib import Path

import psycopg
from psycopg import sql

from agentstate.embedded import APP_ROLE, EmbeddedServices, add_extensions

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
    }


def stop() -> None:
    if _running is not None:
        _running.stop()
        shutil.rmtree(_running.data_dir, ignore_errors=True)


def make_database(worker: str) -> None:
    """Give this test process a database and a Redis database of its own."""
    name = f"test_{worker}"
    with psycopg.connect(admin_url(), autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} OWNER {}").format(
                sql.Identifier(name), sql.Identifier(APP_ROLE)
            )
        )
    add_extensions(admin_url(name))
    number = int(worker.removeprefix("gw")) + 1 if worker.startswith("gw") else 0
    os.environ["DATABASE_URL"] = _with_path(os.environ["DATABASE_URL"], name)
    os.environ["REDIS_URL"] = _with_path(os.environ["REDIS_URL"], str(number))


def admin_url(database: str = "postgres") -> str:
    """The superuser's address of a database of this run."""
    return _with_path(os.environ["AGENTSTATE_TEST_ADMIN_URL"], database)


def _with_path(url: str, path: str) -> str:
    return f"{url.rsplit('/', 1)[0]}/{path}"
