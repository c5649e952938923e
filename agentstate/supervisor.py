"""One command that starts everything on one port, and keeps it running.

The order matters: the folder's lock, so that nothing is shared with another start; what
an earlier start left running; the port, which fails fast and is then held for as long
as we live, so that requests wait while a web process is replaced; the services; the
database's schema; then web and worker processes. Stopping goes the other way round.
"""

import contextlib
import fcntl
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

import httpx
from django.conf import settings
from django.db import OperationalError, connection

from agentstate.backoff import exponential
from agentstate.embedded import (
    EmbeddedServices,
    Postgres,
    Valkey,
    load_secrets,
    prepare_folder,
)
from agentstate.preparation import (
    WayIn,
    collect_static,
    demo_key,
    open_way_in,
    prepare_database,
)
from agentstate.processes import (
    kill_group,
    port_holder,
    start_process,
    stop_process,
    stop_recorded,
)
from agentstate.serving import GRACE_SECONDS, listen, shared_web_command

logger = logging.getLogger(__name__)

CHECK_SECONDS = 0.2
READY_SECONDS = 60
STOP_SECONDS = GRACE_SECONDS + 3
STEADY_SECONDS = 60  # a child that lived this long starts again without delay
SERVICE_PIDS = ("postgres.pid", "valkey.pid")  # their own classes stop these


class CannotServe(Exception):
    """The server cannot start; the message tells a person why."""


class Stopped(BaseException):
    """Told to stop while the services were starting, which may take long."""


@dataclass
class Child:
    """A process that is started again when it ends, later each time it fails soon."""

    name: str
    command: list[str]
    run_folder: Path
    pass_fds: tuple[int, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    failures: int = 0
    started_at: float = 0.0
    start_again_at: float | None = field(default=None)

    def start(self) -> None:
        self.process = start_process(
            self.command, pid_file=self.pid_file, pass_fds=self.pass_fds
        )
        self.started_at = time.monotonic()
        self.start_again_at = None

    @property
    def pid_file(self) -> Path:
        return self.run_folder / f"{self.name}.pid"

    def look_after(self) -> None:
        """Start the process again if it has ended and its delay is over."""
        now = time.monotonic()
        if self.start_again_at is not None:
            if now >= self.start_again_at:
                self.start()
        elif self.process is not None and self.process.poll() is not None:
            if now - self.started_at >= STEADY_SECONDS:
                self.failures = 0
            delay = exponential(self.failures, first=0.5, most=30)
            self.failures += 1
            self.start_again_at = now + delay
            logger.warning(
                "a process ended and is started again",
                extra={
                    "child": self.name,
                    "exit_status": self.process.returncode,
                    "delay_seconds": delay,
                },
            )

    def ask_to_stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def stop(self, timeout: float) -> None:
        if self.process is not None:
            stop_process(self.process, signal.SIGTERM, timeout)
            self.pid_file.unlink(missing_ok=True)


class Supervisor:
    """Serves one data folder on one port; see the module."""

    def __init__(self, data_dir: Path, port: int, *, web_processes: int) -> None:
        self.data_dir = data_dir.resolve()
        self.port = port
        self.web_processes = web_processes
        self.children: list[Child] = []
        self.stopping = threading.Event()
        self.waits_for_services = False

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM. Raises CannotServe, ServiceFailed."""
        with contextlib.suppress(Stopped):
            self._run()

    def _run(self) -> None:
        prepare_folder(self.data_dir)
        with (
            self._signals(),
            lock_folder(self.data_dir),
            self._listener() as listener,
            self._services() as services,
        ):
            self._keep_secret_key()
            way_in = self._prepare()
            try:
                if self.stopping.is_set():
                    return
                first, *others = self._make_children(listener)
                # One alone is ready soonest: each start costs a second of a core.
                self._start(first)
                if self._wait_until_ready(first):
                    print(f"ready http://127.0.0.1:{self.port}\n", flush=True)
                    print(*way_in.lines(self.port), sep="\n", flush=True)
                    self._start(*others)
                while not self.stopping.wait(CHECK_SECONDS):
                    self._look_after(services)
            finally:
                self._stop_children()

    def _keep_secret_key(self) -> None:
        """Use what the other processes will read: at the first start the settings were
        read before there was a secret, and have one that ends with this process."""
        if not settings.SECRET_KEY_IS_KEPT:
            settings.SECRET_KEY = load_secrets(self.data_dir)["secret_key"]
            settings.SECRET_KEY_IS_KEPT = True

    def _prepare(self) -> WayIn:
        metrics = self.data_dir / "metrics"
        shutil.rmtree(metrics, ignore_errors=True)  # they count from the server's start
        metrics.mkdir(mode=0o700)
        try:
            prepare_database(os.environ["DATABASE_URL"])
        except OperationalError as exc:
            raise CannotServe(f"Postgres cannot be used: {exc}".strip()) from exc
        collect_static()
        way_in = open_way_in()
        if settings.DEMO and (key := demo_key()):
            os.environ["AGENTSTATE_DEMO_KEY"] = key
        connection.close()
        return way_in

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first signal stops in order; a second one does not wait for children."""

        def stop(number: int, frame: FrameType | None) -> None:
            if self.stopping.is_set():
                for child in self.children:
                    if child.process is not None:
                        kill_group(child.process.pid)
            self.stopping.set()
            if self.waits_for_services:
                self.waits_for_services = False
                raise Stopped

        handled = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            handled.append(signal.SIGHUP)
        before = {number: signal.signal(number, stop) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def _listener(self) -> Iterator[socket.socket]:
        for pid_file in (self.data_dir / "run").glob("*.pid"):
            if pid_file.name not in SERVICE_PIDS:
                stop_recorded(pid_file, signal.SIGTERM, STOP_SECONDS)
        try:
            listener = listen(self.port)
        except OSError as exc:
            raise CannotServe(
                f"port {self.port} is taken by {port_holder(self.port)}; stop it, or"
                " choose another with AGENTSTATE_PORT"
            ) from exc
        with listener:
            yield listener

    @contextlib.contextmanager
    def _services(self) -> Iterator[EmbeddedServices]:
        services = EmbeddedServices(
            self.data_dir,
            postgres=not os.environ.get("DATABASE_URL"),
            valkey=not os.environ.get("REDIS_URL"),
        )
        self.waits_for_services = not self.stopping.is_set()
        try:
            os.environ |= services.start()
        finally:
            self.waits_for_services = False
        try:
            yield services
        finally:
            services.stop()

    def _make_children(self, listener: socket.socket) -> list[Child]:
        run, fd = self.data_dir / "run", listener.fileno()
        children = [
            Child(f"web-{number}", shared_web_command(fd), run, (fd,))
            for number in range(1, self.web_processes + 1)
        ]
        children.append(Child("worker", manage("procrastinate", "worker"), run))
        if "AGENTSTATE_DEMO_KEY" in os.environ:
            url = f"http://127.0.0.1:{self.port}"
            children.append(Child("demo", manage("demo_agent", url), run))
        return children

    def _start(self, *children: Child) -> None:
        for child in children:
            self.children.append(child)
            child.start()

    def _wait_until_ready(self, web: Child) -> bool:
        """True once requests succeed; False if we are to stop before."""
        deadline = time.monotonic() + READY_SECONDS
        while not self.stopping.wait(0.02):
            if self._answers():
                return not self.stopping.is_set()
            if web.process is not None and web.process.poll() is not None:
                raise CannotServe(f"{web.name} ended at start; its log is above")
            if time.monotonic() > deadline:
                raise CannotServe(f"no answer within {READY_SECONDS} seconds")
        return False

    def _answers(self) -> bool:
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.port}/readyz", timeout=2)
        except httpx.TransportError:
            return False
        return answer.status_code == 200

    def _look_after(self, services: EmbeddedServices) -> None:
        for service in services.services():
            if service.process is not None and service.process.poll() is not None:
                restart_service(service)
        for child in self.children:
            child.look_after()

    def _stop_children(self) -> None:
        for child in self.children:
            child.ask_to_stop()
        deadline = time.monotonic() + STOP_SECONDS
        for child in self.children:
            child.stop(max(0.1, deadline - time.monotonic()))


def restart_service(service: Postgres | Valkey) -> None:
    """Start a service again, on its port; what connects to it finds it there."""
    name = type(service).__name__
    logger.error("a service ended and is started again", extra={"service": name})
    try:
        service.start()
    except Exception:
        # Tried again at the next look: the web answers 503 until then.
        logger.exception("a service did not start", extra={"service": name})


@contextlib.contextmanager
def lock_folder(data_dir: Path) -> Iterator[None]:
    """Hold the data folder alone. Raises CannotServe if another process does."""
    path = data_dir / "run" / "lock"
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            raise CannotServe(
                f"the data folder {data_dir} is in use by process {_holder(file)};"
                " stop that one, or choose another with AGENTSTATE_DATA_DIR"
            ) from exc
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _holder(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip() or "unknown"


def manage(*arguments: str) -> list[str]:
    return [sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments]
