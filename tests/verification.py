"""At the end of a run with pytest-xdist: every worker's rows must equal their logs.

A test that runs last in one worker would look at the others' databases while they are
still at work. Without xdist tests/test_verify_replay_of_suite.py does it.
"""

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests import services

ROOT = Path(__file__).resolve().parent.parent
SHOWN_LENGTH = 10_000


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    for name in worker_databases():
        done = verify(name)
        if reporter is not None:
            reporter.write_line("")
            reporter.write_line(f"{name}: {done.stdout[:SHOWN_LENGTH].strip()}")
        if done.returncode:
            if reporter is not None:
                reporter.write_line(done.stderr[-SHOWN_LENGTH:], red=True)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def worker_databases() -> list[str]:
    with psycopg.connect(services.admin_url()) as connection:
        found = connection.execute(
            "SELECT datname FROM pg_database WHERE datname LIKE 'test\\_gw%' ORDER BY 1"
        ).fetchall()
    return [name for (name,) in found]


def verify(database: str) -> subprocess.CompletedProcess[str]:
    url = f"{os.environ['DATABASE_URL'].rsplit('/', 1)[0]}/{database}"
    return subprocess.run(
        [sys.executable, "manage.py", "verify_replay"],
        cwd=ROOT,
        env=os.environ | {"DATABASE_URL": url},
        capture_output=True,
        text=True,
    )
