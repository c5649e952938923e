"""The product as `make run` starts it, in a temporary folder and on a free port."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentstate.processes import free_port

ROOT = Path(__file__).resolve().parent.parent
READY_SECONDS = 120
STOP_SECONDS = 30


@dataclass(frozen=True)
class Stack:
    """A running server, ways in, and where its services and data are."""

    port: int
    key: str  # of all scopes, in the project "bench"
    database_url: str
    admin_password: str = ""
    redis_url: str = ""
    folder: str = ""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def running() -> Iterator[Stack]:
    """Start Postgres (with durable commits), Valkey, web and worker; stop them after.

    Nothing of the caller's environment reaches them but where programs are.
    """
    with tempfile.TemporaryDirectory(prefix="agentstate-bench-") as folder:
        port = free_port()
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AGENTSTATE_", "DATABASE_", "REDIS_", "PG"))
        } | {
            "AGENTSTATE_DATA_DIR": folder,
            "AGENTSTATE_PORT": str(port),
            "AGENTSTATE_DEMO": "0",
            # A benchmark in which keys are refused would measure refusals.
            "AGENTSTATE_RATE_LIMIT_PER_MINUTE": "0",
        }
        log = Path(folder) / "serve.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "manage.py", "serve"],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        try:
            _wait_until_ready(process, log)
            services = json.loads((Path(folder) / "services.json").read_text())
            key = _make_key(environment)
            password = re.search(r"user admin, password\s+(\S+)", log.read_text())
            assert password is not None
            yield Stack(
                port,
                key,
                services["database_url"],
                password[1],
                services["redis_url"],
                folder,
            )
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while "ready http" not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the server did not start:\n{log.read_text()[-4000:]}")
        time.sleep(0.1)


def _make_key(environment: dict[str, str]) -> str:
    def manage(*arguments: str) -> str:
        command = [sys.executable, "manage.py", *arguments]
        return subprocess.run(
            command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE
        ).stdout.decode()

    manage("create_project", "bench")
    made = manage("create_key", "--project", "bench", "--scopes", "all", "--json")
    key: str = json.loads(made)["key"]
    return key
