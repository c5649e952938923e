"""OWN-19: migrations of the next version run while this one serves."""

import json
import os
import subprocess
import sys
import threading

import httpx
import psycopg
import pytest

from agentstate.ids import new_id
from agentstate.processes import wait_until
from tests import services
from tests.factories import APPEND_FILLER
from tests.server import ROOT, Server

NEXT = {"DJANGO_SETTINGS_MODULE": "tests.ops.next_version.settings"}
BATCH = 2500


@pytest.fixture
def database_name():
    return f"upgraded_{new_id().hex}"


@pytest.fixture
def environment(database_name):
    return {"DATABASE_URL": services.migrated_database(database_name)}


def manage(environment, *arguments):
    return subprocess.Popen(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def done(process):
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0, out
    return out.strip()


@pytest.fixture
def old_server(environment, tmp_path):
    server = Server(tmp_path, **environment)
    server.start()
    yield server
    server.kill()


class Load:
    """Clients that append to sessions of their own until told to stop."""

    def __init__(self, server, key, clients=3):
        self.url = f"{server.base_url}/api/v1/sessions"
        self.headers = {"Authorization": f"Bearer {key}"}
        self.over = threading.Event()
        self.statuses = []
        self.threads = [threading.Thread(target=self.append) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def append(self):
        said = {"type": "message.user", "payload": {"content": "on and on"}}
        with httpx.Client(headers=self.headers, timeout=60) as http:
            url = f"{self.url}/{http.post(self.url, json={}).json()['id']}/events"
            while not self.over.is_set():
                self.statuses.append(
                    http.post(url, json={"events": [said]}).status_code
                )

    def goes_on(self, more=60):
        """Whether that many more appends are answered."""
        wanted = len(self.statuses) + more
        return wait_until(lambda: len(self.statuses) >= wanted, 120)

    def stop(self):
        self.over.set()
        for thread in self.threads:
            thread.join()
        assert set(self.statuses) == {201}


def fill(connection, events):
    """Append `events` to one session."""
    [session_id] = connection.execute(
        "SELECT id FROM agent_sessions LIMIT 1"
    ).fetchone()
    for _ in range(events // BATCH):
        connection.execute(APPEND_FILLER, [BATCH, session_id])


@pytest.mark.parametrize(
    "events", [10_000, pytest.param(5_000_000, marks=pytest.mark.soak)]
)
def test_own_19_the_next_version_migrates_under_load(
    environment, database_name, old_server, tmp_path, events
):
    """A column and an index for the events, there and back, while both versions serve.

    The migration meets a long transaction that reads the events: nobody may have to
    wait behind the one that waits for it.
    """
    done(manage(environment, "create_project", "upgraded"))
    wanted = ("--project", "upgraded", "--scopes", "all", "--json")
    key = json.loads(done(manage(environment, "create_key", *wanted)))["key"]
    loads = [Load(old_server, key)]
    admin = services.admin_url(database_name)
    try:
        assert loads[0].goes_on(3)
        with psycopg.connect(admin, autocommit=True) as connection:
            fill(connection, events)
        with psycopg.connect(admin) as reader:
            # It is longer than what the embedded Postgres takes for forgotten.
            reader.execute("SET idle_in_transaction_session_timeout = 0")
            reader.execute("SELECT FROM agent_events LIMIT 1")
            migrating = manage(environment | NEXT, "migrate")
            assert wait_until(lambda: waits_for_a_lock(admin), 120)
            assert loads[0].goes_on()
            assert migrating.poll() is None
        assert "next_version.0002_event_note_index... OK" in done(migrating)

        new_server = Server(tmp_path, **environment | NEXT)
        new_server.start()
        try:
            loads.append(Load(new_server, key))
            assert loads[0].goes_on() and loads[1].goes_on()
            done(manage(environment | NEXT, "migrate", "next_version", "zero"))
            assert loads[0].goes_on() and loads[1].goes_on()
        finally:
            loads.pop().stop()
            new_server.kill()
    finally:
        for load in loads:
            load.stop()


def waits_for_a_lock(admin):
    with psycopg.connect(admin) as connection:
        return connection.execute(
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            " AND query LIKE 'ALTER TABLE agent_events%'"
        ).fetchone()


def test_an_index_that_was_cut_short_is_built_anew(environment, database_name):
    with psycopg.connect(services.admin_url(database_name), autocommit=True) as admin:
        admin.execute("CREATE INDEX event_note ON agent_events (project_id, actor)")
        admin.execute(
            "UPDATE pg_index SET indisvalid = false"
            " WHERE indexrelid = 'event_note'::regclass"
        )
    done(manage(environment | NEXT, "migrate"))
    with psycopg.connect(services.admin_url(database_name)) as admin:
        [valid] = admin.execute(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = 'event_note'::regclass"
        ).fetchone()
    assert valid
