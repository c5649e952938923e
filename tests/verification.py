"""At the end of a run with pytest-xdist: every worker's rows must equal their logs.

Each worker looks at its own database when its tests are done, and the process that
distributes reports what it found. Without xdist tests/test_verify_replay_of_suite.py
does it.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHOWN_LENGTH = 10_000
DIFFERENCES = pytest.StashKey[bool]()


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        done = verify()
        output["verify_replay"] = [done.returncode, done.stdout, done.stderr]
    elif session.config.stash.get(DIFFERENCES, False):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Report what a worker found; one that died before it looked fails the run."""
    found = getattr(node, "workeroutput", {}).get("verify_replay")
    code, out, err = found or [1, "", "ended before verify_replay"]
    reporter = node.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        reporter.write_line(f"\n{node.gateway.id}: {out[:SHOWN_LENGTH].strip()}")
    if code:
        node.config.stash[DIFFERENCES] = True
        if reporter is not None:
            reporter.write_line(err[-SHOWN_LENGTH:], red=True)


def verify() -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", "verify_replay"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
