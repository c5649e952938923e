"""Stopping in every way, and starting again with nothing acknowledged lost.

The tests share a folder, since a first start is the dearest; each leaves the server
stopped, and begins by starting it.
"""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agentstate.processes import wait_until
from tests.ops.supervised import START_SECONDS, Supervised


@pytest.fixture(scope="module")
def folder() -> Iterator[Supervised]:
    top = Path(tempfile.mkdtemp(prefix="agentstate-serve-"))
    server = Supervised(top)
    yield server
    server.clean_up()
    shutil.rmtree(top, ignore_errors=True)


@pytest.fixture
def served(folder: Supervised) -> Iterator[Supervised]:
    """The folder's server, running; stopped after the test, however it went."""
    folder.start()
    yield folder
    if not folder.has_ended:
        folder.stop()


def append_one(http) -> str:
    session = http.post("/api/v1/sessions", json={"agent": "support"}).json()["id"]
    event = {"type": "message.user", "payload": {"content": "acknowledged"}}
    answer = http.post(f"/api/v1/sessions/{session}/events", json={"events": [event]})
    assert answer.status_code == 201
    return session


def is_kept(http, session: str) -> bool:
    events = http.get(f"/api/v1/sessions/{session}/events").json()["items"]
    return "acknowledged" in [event["payload"].get("content") for event in events]


def test_kill_9_of_everything_loses_nothing_acknowledged(served):
    with served.client(served.any_key()) as http:
        session = append_one(http)
        served.kill_everything()
        assert (served.data_dir / "postgres" / "postmaster.pid").exists()
        served.start()
        assert is_kept(http, session)
    assert "shown this once" not in served.out


def test_kill_9_of_the_supervisor_leaves_nothing_in_the_way(served):
    with served.client(served.any_key()) as http:
        session = append_one(http)
        orphan = psutil.Process(served.pid_of("web-1"))
        orphan.suspend()  # it will not hear that its parent died
        served.kill_supervisor()
        served.start()
        assert not orphan.is_running()
        assert is_kept(http, session)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_everything_in_order(served, number):
    assert served.stop(number) == 0
    assert psutil.wait_procs(served.tree, 60)[1] == []
    assert not (served.data_dir / "postgres" / "postmaster.pid").exists()
    assert list((served.data_dir / "run").glob("*.pid")) == []


def test_it_stops_in_time_though_children_do_not_listen(served):
    for name in ("web-1", "worker"):
        os.kill(served.pid_of(name), signal.SIGSTOP)
    assert served.stop() == 0
    assert psutil.wait_procs(served.tree, 60)[1] == []


def test_a_signal_while_it_starts_stops_it(folder):
    started = folder.data_dir / "run" / "postgres.pid"
    for _ in range(5):  # until we were faster
        folder.launch()
        assert wait_until(started.exists, START_SECONDS)
        assert folder.stop() == 0
        if folder.out == "":
            break
    assert folder.out == ""


def test_a_signal_while_postgres_recovers_stops_it(folder):
    """However long that takes: a start that is not over is no failure."""
    folder.start()
    assert folder.stop() == 0
    postgres = folder.data_dir / "postgres"
    with (postgres / "postgresql.auto.conf").open("a") as configuration:
        configuration.write("hot_standby = off\n")
    (postgres / "standby.signal").touch()  # it recovers until it is told to end
    folder.launch()
    assert wait_until((folder.data_dir / "run" / "postgres.pid").exists, START_SECONDS)
    assert not wait_until(lambda: folder.has_ended, 3)
    assert folder.stop() == 0
    assert folder.out == "" and "Traceback" not in folder.err
