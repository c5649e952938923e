"""Stopping in every way, and starting again with nothing acknowledged lost."""

import os
import signal
import time

import psutil
import pytest

from agentstate.processes import wait_until


def append_one(served, http) -> str:
    session = http.post("/api/v1/sessions", json={"agent": "support"}).json()["id"]
    event = {"type": "message.user", "payload": {"content": "acknowledged"}}
    answer = http.post(f"/api/v1/sessions/{session}/events", json={"events": [event]})
    assert answer.status_code == 201
    return session


def is_kept(served, key: str, session: str) -> bool:
    events = served.client(key).get(f"/api/v1/sessions/{session}/events").json()
    return "acknowledged" in [e["payload"].get("content") for e in events["items"]]


def test_kill_9_of_everything_loses_nothing_acknowledged(supervise):
    served = supervise()
    served.start()
    key = served.key
    session = append_one(served, served.client(key))
    served.kill_everything()
    assert (served.data_dir / "postgres" / "postmaster.pid").exists()
    served.start()
    assert is_kept(served, key, session)
    assert "shown this once" not in served.out


def test_kill_9_of_the_supervisor_leaves_nothing_in_the_way(supervise):
    served = supervise()
    served.start()
    key = served.key
    session = append_one(served, served.client(key))
    served.kill_supervisor()
    served.start()
    assert is_kept(served, key, session)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_everything_in_order(supervise, number):
    served = supervise()
    served.start()
    began = time.monotonic()
    assert served.stop(number) == 0
    assert time.monotonic() - began < 20
    assert [p for p in served.tree if p.is_running()] == []
    assert not (served.data_dir / "postgres" / "postmaster.pid").exists()
    assert list((served.data_dir / "run").glob("*.pid")) == []


def test_it_stops_in_time_though_children_do_not_listen(supervise):
    served = supervise()
    served.start()
    for name in ("web-1", "worker"):
        os.kill(served.pid_of(name), signal.SIGSTOP)
    began = time.monotonic()
    assert served.stop() == 0
    assert time.monotonic() - began < 30
    gone, alive = psutil.wait_procs(served.tree, 5)
    assert alive == []


def test_a_signal_while_it_starts_stops_it(supervise):
    served = supervise()
    served.launch()
    lock = served.data_dir / "run" / "lock"
    assert wait_until(lambda: lock.exists() and lock.read_text() != "", 60)
    assert served.stop() == 0
    assert "ready " not in served.out


def test_an_orphan_that_does_not_listen_is_out_of_the_way(supervise):
    served = supervise()
    served.start()
    orphan = psutil.Process(served.pid_of("web-1"))
    orphan.suspend()  # it will not hear that its parent died
    served.kill_supervisor()
    served.start()
    assert not orphan.is_running()
