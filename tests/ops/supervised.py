"""`manage.py serve` as a person starts it: a process tree with a data folder."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx
import psutil

from agentstate.processes import kill_group, wait_until
from tests.server import Port

ROOT = Path(__file__).resolve().parent.parent.parent
START_SECONDS = 120  # the machine may be busy; a start takes a few
STOP_SECONDS = 120


class Supervised:
    """One data folder and what serves it; start it again after it was stopped."""

    def __init__(self, folder: Path, **environment: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.data_dir = folder / "data"
        self.held_port = Port()
        self.port = self.held_port.number
        self.url = f"http://127.0.0.1:{self.port}"
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.endswith("_URL")},
            "AGENTSTATE_DATA_DIR": str(self.data_dir),
            "AGENTSTATE_PORT": str(self.port),
            "AGENTSTATE_DEMO": "0",
            **environment,
        }
        for name in (
            "PROMETHEUS_MULTIPROC_DIR",
            "AGENTSTATE_REDIS_TIMEOUT_MS",
            "AGENTSTATE_DB_PREPARED",
        ):
            if name not in environment:
                self.environment.pop(name, None)
        self.process: subprocess.Popen[bytes] | None = None
        self.tree: list[psutil.Process] = []

    def launch(self) -> None:
        with self.out_path.open("wb") as out, self.err_path.open("ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "serve"],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def start(self) -> None:
        """Launch and wait for the ready line and for every process behind it."""
        self.launch()
        if not wait_until(lambda: self.has_ended or self.is_ready, START_SECONDS):
            raise AssertionError(f"not ready:\n{self.err}")
        assert not self.has_ended, self.err
        assert wait_until(self.has_worker, START_SECONDS), self.err
        self.remember_tree()

    def has_worker(self) -> bool:
        return bool(self.health().get("checks", {}).get("worker") == "ok")

    def remember_tree(self) -> None:
        assert self.process is not None
        top = psutil.Process(self.process.pid)
        self.tree = [top, *top.children(recursive=True)]

    @property
    def out_path(self) -> Path:
        return self.folder / "out"

    @property
    def err_path(self) -> Path:
        return self.folder / "err"

    @property
    def out(self) -> str:
        return self.out_path.read_text()

    @property
    def err(self) -> str:
        return self.err_path.read_text()

    @property
    def is_ready(self) -> bool:
        # The last line is the curl line: all of it has been printed.
        return bool(re.search(r"^ready .*^curl .*\n", self.out, re.M | re.S))

    @property
    def has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    @property
    def key(self) -> str:
        found = re.search(r"API key +(as_\S+)", self.out)
        assert found, self.out
        return found[1]

    def any_key(self) -> str:
        """A key of the first project, made beside the running server."""
        done = subprocess.run(
            [sys.executable, "manage.py", "create_key", "--project", "default"]
            + ["--scopes", "all", "--json"],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return json.loads(done.stdout)["key"]

    def pid_of(self, name: str) -> int:
        path = self.data_dir / "run" / f"{name}.pid"
        return int(re.search(r'"pid": (\d+)', path.read_text())[1])

    def is_replaced(self, name: str, before: int) -> bool:
        try:
            return self.pid_of(name) != before
        except FileNotFoundError:  # between the two
            return False

    def health(self) -> dict:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=30).json()
        except httpx.TransportError:
            return {}

    def client(self, key: str) -> httpx.Client:
        return httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {key}"}, timeout=60
        )

    def kill_supervisor(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def kill_everything(self) -> None:
        """SIGKILL to each process, the databases included, as a power cut would."""
        self.remember_tree()
        for process in self.tree:
            with suppress(psutil.NoSuchProcess):  # its parent is gone already
                process.kill()
        assert self.process is not None
        self.process.wait()
        psutil.wait_procs(self.tree, 10)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)

    def clean_up(self) -> None:
        """Whatever a failed test left; nothing outlives it."""
        if self.process is not None and not self.has_ended:
            self.remember_tree()
            self.process.kill()
            self.process.wait()
        for process in self.tree:
            if process.is_running():
                kill_group(process.pid)
