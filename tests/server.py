"""A real server process: the application as it is served, over a test's database."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from agentstate.processes import wait_until

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 120  # seconds; the machine may be busy, a start takes a few


class Port:
    """A free port that the system gives to nobody else as long as this object lives.

    A server may listen there and be restarted: this socket is bound, and does not.
    """

    def __init__(self) -> None:
        self.holder = socket.socket()
        self.holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.holder.bind(("127.0.0.1", 0))
        self.number: int = self.holder.getsockname()[1]
        if not sys.platform.startswith("linux"):
            self.holder.close()  # elsewhere no server could bind beside it

    def __del__(self) -> None:
        self.holder.close()


class Server:
    """One web process on a free port; the environment can be changed by name."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.held_port = Port()
        self.port = self.held_port.number
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.log_path = folder / f"server-{self.port}.log"
        self.environment = os.environ | environment
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        from agentstate.serving import web_command

        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                web_command(self.port),
                env=self.environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        ready = wait_until(self._accepts_or_died, PATIENCE)
        if not ready or self.process.poll() is not None:
            raise RuntimeError(f"no server:\n{self.log_path.read_text()[-4000:]}")

    def _accepts_or_died(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            return True
        try:
            return httpx.get(f"{self.base_url}/healthz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False

    def get(self, path: str, **options: Any) -> httpx.Response:
        """The answer to one call without a key, however long it takes."""
        return httpx.get(self.base_url + path, timeout=PATIENCE, **options)

    def kill(self) -> None:
        """SIGKILL to the server and all that it started."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def stop(self) -> None:
        """SIGTERM, as a deployment would; SIGKILL if it does not end in time."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()

    def restart(self) -> None:
        """Start again on the same port, after `kill` or `stop`."""
        self.start()

    @property
    def log(self) -> str:
        return self.log_path.read_text()
