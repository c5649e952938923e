"""Starting, recording and stopping processes; delays between tries."""

import os
import signal
import socket
import subprocess
import sys

import psutil
import psycopg
import pytest

from agentstate.backoff import exponential
from agentstate.pool import check_open
from agentstate.processes import (
    port_holder,
    port_in_use,
    record_pid,
    recorded_process,
    start_process,
    stop_process,
    wait_until,
    write_private,
)
from tests import services

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
DEAF = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print(flush=True); time.sleep(60)",
]


def test_delays_double_up_to_the_most():
    delays = [exponential(n, first=0.5, most=30) for n in range(9)]
    assert delays == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    assert exponential(10_000, first=0.5, most=30) == 30


def test_a_recorded_process_is_found_while_it_lives(tmp_path):
    pid_file = tmp_path / "x.pid"
    process = start_process(SLEEP, pid_file=pid_file)
    assert recorded_process(pid_file).pid == process.pid
    stop_process(process, signal.SIGTERM, 10)
    assert recorded_process(pid_file) is None


def test_a_pid_that_went_to_another_process_is_not_taken_for_ours(tmp_path):
    pid_file = tmp_path / "x.pid"
    record_pid(pid_file, os.getpid())
    started = psutil.Process().create_time()
    text = pid_file.read_text().replace(str(started), str(started - 100))
    pid_file.write_text(text)
    assert recorded_process(pid_file) is None


def test_a_pid_file_that_was_cut_short_is_ignored(tmp_path):
    pid_file = tmp_path / "x.pid"
    pid_file.write_text('{"pid": 1')
    assert recorded_process(pid_file) is None


def test_a_process_that_ignores_the_signal_is_killed(tmp_path):
    with (tmp_path / "log").open("wb") as log:
        process = start_process(DEAF, pid_file=tmp_path / "x.pid", log=log)
    assert wait_until(lambda: (tmp_path / "log").stat().st_size > 0, 60)
    stop_process(process, signal.SIGTERM, 0.1)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone has it")
def test_a_process_dies_with_its_parent(tmp_path):
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time\nfrom pathlib import Path\n"
            "from agentstate.processes import start_process\n"
            f"start_process({SLEEP!r}, pid_file=Path({str(tmp_path / 'x.pid')!r}))\n"
            "time.sleep(60)",
        ]
    )
    assert wait_until(lambda: recorded_process(tmp_path / "x.pid") is not None, 60)
    parent.kill()
    parent.wait()
    assert wait_until(lambda: recorded_process(tmp_path / "x.pid") is None, 60)


def test_the_holder_of_a_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert port_in_use(port)
        assert f"process {os.getpid()}" in port_holder(port)
    assert not port_in_use(port)


def test_a_private_file_is_private_from_its_first_byte(tmp_path):
    write_private(tmp_path / "x", "one")
    write_private(tmp_path / "x", "two")
    assert (tmp_path / "x").read_text() == "two"
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["x"]


def test_an_idle_connection_that_the_server_ended_is_noticed():
    with psycopg.connect(services.admin_url(), autocommit=True) as admin:
        connection = psycopg.connect(services.admin_url())
        check_open(connection)
        admin.execute(
            "SELECT pg_terminate_backend(%s, 10000)", [connection.info.backend_pid]
        )
        with pytest.raises(psycopg.OperationalError):
            check_open(connection)
