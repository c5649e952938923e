"""The examples run as their README says, and do what they say."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples import approval, fan_out, refund_agent, specialists
from examples.fan_out import run_with

ROOT = Path(__file__).resolve().parents[2]


def test_the_refund_is_paid_once(client, capsys):
    refund_agent.main(client)
    said = capsys.readouterr().out
    assert "is in_doubt" in said
    assert "paid 1 time" in said
    [run] = client.runs.list(state=["succeeded"])
    assert [step.attempt for step in client.runs.get(run.id).steps] == [1, 1, 1]


def test_the_payment_is_what_was_approved(client, capsys):
    approval.main(client)
    assert "succeeded: {'paid': 50" in capsys.readouterr().out


def test_the_pages_are_read_side_by_side(client, server, key, capsys):
    asyncio.run(run_with(server.base_url, key))
    said = capsys.readouterr().out
    assert f"{fan_out.PAGES} of {fan_out.PAGES} read" in said
    assert "succeeded" in said


def test_specialists_in_processes_of_their_own_do_the_parts(client, capsys):
    run = specialists.main(client)
    said = capsys.readouterr().out
    assert "the planner's run has succeeded" in said
    assert "runs below it: succeeded, succeeded" in said
    written, found = client.handoffs.list(run.id)
    processes = {each.result["data"]["process"] for each in (found, written)}
    assert len(processes | {os.getpid()}) == 3
    assert found.result["data"]["twice"] == [["2026-01-14", 30]]
    assert written.result["data"]["refused"] == "send_email"
    assert run.steps[0].result == written.result
    assert [step.attempt for step in run.steps if step.tool] == [1]


@pytest.mark.parametrize("name", ["fan_out", "specialists"])
def test_one_command_makes_its_own_key(server, name):
    environment = os.environ | {"AGENTSTATE_URL": server.base_url}
    environment.pop("AGENTSTATE_API_KEY", None)
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{name}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "succeeded" in done.stdout


def test_without_a_server_an_example_says_what_to_do(tmp_path):
    none = ("AGENTSTATE_URL", "AGENTSTATE_API_KEY", "DATABASE_URL", "REDIS_URL")
    env = {name: value for name, value in os.environ.items() if name not in none}
    ended = subprocess.run(
        [sys.executable, "-m", "examples.fan_out"],
        env=env | {"AGENTSTATE_DATA_DIR": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert "`make run`" in ended.stderr and "AGENTSTATE_API_KEY" in ended.stderr
    assert "Traceback" not in ended.stderr
