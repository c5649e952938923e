"""A real server process: the application as it is served, over a test's database."""

import os
import signal
import subprocess
from pathlib import Path

import httpx

from agentstate.processes import free_port, wait_until

ROOT = Path(__file__).resolve().parent.parent


class Server:
    """One web process on a free port; the environment can be changed by name."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.port = free_port()
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
        if not wait_until(self._accepts_or_died, 30) or self.process.poll() is not None:
            raise RuntimeError(f"no server:\n{self.log_path.read_text()[-4000:]}")

    def _accepts_or_died(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            return True
        try:
            return httpx.get(f"{self.base_url}/healthz", timeout=2).status_code == 200
        except httpx.TransportError:
            return False

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
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()

    def restart(self) -> None:
        """Start again on the same port, after `kill` or `stop`."""
        self.start()

    @property
    def log(self) -> str:
        return self.log_path.read_text()
