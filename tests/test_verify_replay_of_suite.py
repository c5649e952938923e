"""The log of everything that the suite did is folded anew; the rows must equal it.

Tests that damage rows on purpose do so in a transaction that they roll back.
"""

import os
import subprocess
import sys
from io import StringIO
from pathlib import Path

import psycopg
import pytest
from django.core.management import CommandError, call_command

from sessions_app.models import Event, Session
from tests import services

pytestmark = [pytest.mark.last, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parent.parent


def test_every_row_of_the_suite_equals_its_log() -> None:
    out = StringIO()
    try:
        call_command("verify_replay", stdout=out)
    except CommandError:
        pytest.fail(out.getvalue()[:10_000])


def test_there_was_something_to_verify(request: pytest.FixtureRequest) -> None:
    if request.session.testscollected < 50:
        pytest.skip("only a part of the suite was asked for")
    assert Session.objects.exists()
    assert Event.objects.filter(seq__gte=1).exists()


def test_the_databases_of_other_workers_equal_their_logs() -> None:
    """With pytest-xdist each worker has a database of its own."""
    own = os.environ["DATABASE_URL"].rsplit("/", 1)
    with psycopg.connect(services.admin_url()) as connection:
        names = connection.execute(
            "SELECT datname FROM pg_database WHERE datname LIKE 'test\\_%%'"
            " AND datname <> %s",
            [own[1]],
        ).fetchall()
    for (name,) in names:
        done = subprocess.run(
            [sys.executable, "manage.py", "verify_replay"],
            cwd=ROOT,
            env=os.environ | {"DATABASE_URL": f"{own[0]}/{name}"},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout[:10_000] + done.stderr[-2000:]
