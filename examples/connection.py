"""How the examples reach the server: a key from the environment, or a new one."""

import json
import os
import subprocess
import sys
from pathlib import Path

from agentstate_client import Client

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "examples"
SCOPES = "sessions:read,sessions:write,runs:read,runs:write,runs:work"


def connect() -> Client:
    """Return a client for AGENTSTATE_URL, or for what `make run` serves.

    Without AGENTSTATE_API_KEY a key is made, as an operator would, in the data folder
    of this checkout; it is good for a day.
    """
    port = os.environ.get("AGENTSTATE_PORT", "8000")
    url = os.environ.get("AGENTSTATE_URL") or f"http://127.0.0.1:{port}"
    return Client(url, os.environ.get("AGENTSTATE_API_KEY") or make_key())


def make_key() -> str:
    manage("create_project", PROJECT)
    options = ("--project", PROJECT, "--scopes", SCOPES, "--expires-days", "1")
    key: str = json.loads(manage("create_key", *options, "--json"))["key"]
    return key


def manage(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode:  # it has said why
        raise SystemExit(
            "No key: set AGENTSTATE_URL and AGENTSTATE_API_KEY, or see above"
        )
    return done.stdout
