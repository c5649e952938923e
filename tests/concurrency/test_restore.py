"""Acceptance 17: the log dumped and restored into a new cluster, with live cursors."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
import pytest

from agentstate.embedded import POSTGRES_BIN, EmbeddedServices
from agentstate.processes import wait_until
from sessions_app import feed
from tests.factories import fetch, make_session, says
from tests.fixtures import ROOT
from tests.server import Server


@pytest.fixture
def other_services():
    """A Postgres that is not started. Not in pytest's folder: that one is closed to
    the services' user."""
    folder = Path(tempfile.mkdtemp(prefix="agentstate-other-"))
    services = EmbeddedServices(folder, durable=False, valkey=False)
    yield services
    services.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def other_cluster(other_services):
    """Another Postgres; its addresses, the application's and the superuser's."""
    addresses = other_services.start()
    return addresses["DATABASE_URL"], other_services.postgres.admin_url("agentstate")


def dump_and_restore(dump: Path, admin_url: str) -> None:
    """As docs/operating.md says: the extensions are there, their owner is another."""
    run = {"check": True, "capture_output": True, "text": True}
    source = ["--dbname", os.environ["DATABASE_URL"]]
    left_out = [f"--exclude-extension={name}" for name in ("vector", "pg_trgm")]
    subprocess.run(
        [POSTGRES_BIN / "pg_dump", *source, "-Fc", "-f", dump, *left_out], **run
    )
    target = ["--dbname", admin_url, "--no-owner", "--role=agentstate"]
    subprocess.run(
        [POSTGRES_BIN / "pg_restore", *target, "--exit-on-error", dump], **run
    )


def test_acceptance_17_cursors_stay_true_in_a_restored_cluster(
    other_cluster, api, project, tmp_path
):
    use_up_transaction_ids(5000)
    session = make_session(api)
    session.append(*[str(n) for n in range(1, 10)])
    begun = api.get("/api/v1/events", params={"limit": 4}).json
    ended = api.get("/api/v1/events", params={"limit": 1000}).json
    assert len(ended["items"]) == 10
    url, admin_url = other_cluster
    dump_and_restore(tmp_path / "dump", admin_url)
    # This came after the dump, so the copy does not have it.
    session.append("lost with the old cluster")
    lost = api.get("/api/v1/events", params={"after": ended["cursor"]}).json
    assert len(lost["items"]) == 1

    environment = os.environ | {"DATABASE_URL": url}
    migrate(environment)
    server = Server(tmp_path, DATABASE_URL=url)
    server.start()
    try:
        check_cursors(server, url, api, session, begun, ended, lost)
    finally:
        server.kill()
    with psycopg.connect(url) as copy:
        [generation] = copy.execute("SELECT agentstate_feed_generation()").fetchone()
        [xid] = copy.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    [(before,)] = fetch("SELECT agentstate_feed_generation()")
    assert generation == before + 1
    # The trap is set: there transactions are numbered below what a cursor holds here.
    assert xid < feed.decode_position(ended["cursor"]).xid


def use_up_transaction_ids(count):
    """So that the old cluster is far ahead of a new one."""
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as old:
        for _ in range(count):
            old.execute("SELECT pg_current_xact_id()")


def wait_until_settled_there(url):
    """Until nothing that is open in another cluster holds its feed back."""
    unsettled = f"SELECT 1 FROM agent_events WHERE NOT ({feed.SETTLED})"
    with psycopg.connect(url, autocommit=True) as there:
        assert wait_until(lambda: there.execute(unsettled).fetchone() is None, 60)


def check_cursors(server, url, api, session, begun, ended, lost):
    import httpx

    def call(method, path, **options):
        answer = httpx.request(
            method,
            server.base_url + path,
            headers={"Authorization": f"Bearer {api.key}"},
            **options,
        )
        assert answer.is_success, answer.text
        return answer.json()

    def read(cursor):
        wait_until_settled_there(url)
        found = call("GET", "/api/v1/events", params={"after": cursor, "limit": 1000})
        return [e["payload"].get("content") for e in found["items"]], found["cursor"]

    rest, at_end = read(begun["cursor"])
    assert rest == [str(n) for n in range(4, 10)]
    assert read(ended["cursor"]) == ([], ended["cursor"])
    assert at_end == ended["cursor"]
    for text in ("new 1", "new 2"):
        body = {"events": [says(text)]}
        call("POST", f"{session.url}/events", json=body)
    # Whoever was at the end, or even beyond what was restored, sees the new once.
    for cursor in (ended["cursor"], lost["cursor"]):
        texts, after = read(cursor)
        assert texts == ["new 1", "new 2"]
        assert read(after) == ([], after)
    assert read(begun["cursor"])[0] == [*rest, "new 1", "new 2"]
    everything = call("GET", "/api/v1/events", params={"limit": 1000})["items"]
    assert [e["seq"] for e in everything] == list(range(12))


def test_a_recovery_to_a_point_in_time_begins_a_generation(other_services):
    """The same cluster on another timeline counts its transactions anew."""
    postgres = other_services.postgres
    url = other_services.start()["DATABASE_URL"]
    environment = os.environ | {"DATABASE_URL": url}
    migrate(environment)
    assert generations(url) == [1]
    other_services.stop()
    (postgres.folder / "recovery.signal").touch()
    with (postgres.folder / "postgresql.auto.conf").open("a") as configuration:
        configuration.write("restore_command = 'false'\n")
    other_services.start()
    for _ in range(2):  # and only one
        prepare(environment)
        assert generations(url) == [1, 2]


def migrate(environment):
    command = [sys.executable, "manage.py", "migrate", "--verbosity=0"]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def prepare(environment):
    """As `manage.py serve` does, where nothing is left to migrate."""
    code = (
        "import django, os; django.setup();"
        "from agentstate.preparation import prepare_database;"
        "prepare_database(os.environ['DATABASE_URL'])"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)


def generations(url):
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT gen FROM agent_feed_generations ORDER BY gen"
        ).fetchall()
    return [gen for (gen,) in found]
