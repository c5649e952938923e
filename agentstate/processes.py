"""Start, record and stop the processes that belong to one data folder.

Every process gets a session of its own, so that Ctrl-C in a terminal reaches the
supervisor alone, and dies with its parent where the system can arrange that (Linux).
What outlives its parent all the same is found by the pid file and stopped at the next
start.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

PR_SET_PDEATHSIG = 1
POLL_SECONDS = 0.02


def start_process(
    command: Sequence[str],
    *,
    pid_file: Path,
    env: Mapping[str, str] | None = None,
    log: IO[bytes] | None = None,
    stdin: bytes | None = None,
    user: int | None = None,
    group: int | None = None,
    pass_fds: Sequence[int] = (),
    death_signal: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own and leave its pid in `pid_file`.

    `log` takes both outputs (inherited when None). `user` and `group` are numeric.
    `death_signal` is what the process gets when its parent dies without a word.
    """
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=log,
        stderr=log,
        start_new_session=True,
        pass_fds=pass_fds,
        user=user,
        group=group,
        extra_groups=None if group is None else [group],
        preexec_fn=_dies_with_parent(death_signal),
    )
    if stdin is not None:
        assert process.stdin is not None
        # A process that died at once is reported by its log, not by a broken pipe.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(stdin)
            process.stdin.close()
    record_pid(pid_file, process.pid)
    return process


def _dies_with_parent(death_signal: signal.Signals) -> Callable[[], None] | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def set_death_signal() -> None:
        # Runs after the change of user, which would clear the setting again.
        libc.prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)

    return set_death_signal


def record_pid(pid_file: Path, pid: int) -> None:
    """Write the pid with its start time, so that a later owner of the pid is told."""
    with contextlib.suppress(psutil.NoSuchProcess):
        started = psutil.Process(pid).create_time()
        write_private(pid_file, json.dumps({"pid": pid, "started": started}))


def recorded_process(pid_file: Path) -> psutil.Process | None:
    """The process that `pid_file` names, if it still runs."""
    try:
        record: dict[str, Any] = json.loads(pid_file.read_text())
        process = psutil.Process(record["pid"])
        same = abs(process.create_time() - record["started"]) < 1
    except (FileNotFoundError, ValueError, KeyError, psutil.NoSuchProcess):
        return None
    return process if same and process.status() != psutil.STATUS_ZOMBIE else None


def stop_recorded(pid_file: Path, stop_signal: signal.Signals, timeout: float) -> bool:
    """Stop what an earlier supervisor left running; True if there was something."""
    process = recorded_process(pid_file)
    if process is not None:
        stop_orphan(process, stop_signal, timeout)
    pid_file.unlink(missing_ok=True)
    return process is not None


def stop_orphan(
    process: psutil.Process, stop_signal: signal.Signals, timeout: float
) -> None:
    """Ask a process that is not our child to end, and kill its group if it does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(stop_signal)
        try:
            process.wait(timeout)
        except psutil.TimeoutExpired:
            kill_group(process.pid)
            process.wait(timeout)


def stop_process(
    process: subprocess.Popen[bytes], stop_signal: signal.Signals, timeout: float
) -> None:
    """Ask a child to end, and kill its whole group if it has not within `timeout`."""
    if process.poll() is None:
        process.send_signal(stop_signal)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            kill_group(process.pid)
            process.wait()
    # A leader that ended may have left members of its group behind.
    kill_group(process.pid)


def kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def free_port(preferred: int | None = None) -> int:
    """A port that is free on loopback; `preferred` if that one is."""
    if preferred is not None and not port_in_use(preferred):
        return preferred
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def port_in_use(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        # As servers do: a connection in TIME_WAIT does not hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
        return False


def port_holder(port: int) -> str:
    """Who listens on `port`, in words for a person."""
    for process in psutil.process_iter(["pid", "name", "cmdline"]):
        with contextlib.suppress(psutil.Error):
            if any(
                c.status == psutil.CONN_LISTEN and c.laddr.port == port
                for c in process.net_connections("tcp")
            ):
                command = " ".join(process.info["cmdline"] or [])
                return f"process {process.pid} ({command[:120] or process.name()})"
    return "a process of another user"


def wait_until(ready: Callable[[], bool], timeout: float) -> bool:
    """Poll `ready` until it is true; False once `timeout` seconds have passed."""
    deadline = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def write_private(path: Path, text: str) -> None:
    """Replace `path` in one move with a file only its owner may read."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
