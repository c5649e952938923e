"""SIGKILL to servers and sweepers: what was acknowledged holds; the rest goes on."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress

import httpx
import pytest

from agentstate.processes import wait_until
from runs_app.sweeps import sweep
from tests.runs_app.conftest import log_holds  # noqa: F401
from tests.server import ROOT


@pytest.fixture
def server(server_factory):
    return server_factory()


@pytest.fixture
def remote(server, api):
    client = httpx.Client(
        base_url=f"{server.base_url}/api/v1",
        headers={"Authorization": f"Bearer {api.key}"},
        timeout=60,
    )
    yield client
    client.close()


def test_st_16_leases_outlive_the_servers(server, remote, runs):
    runs.create(["a"])
    claim = {"worker": "w-1", "lease_s": 60}
    [step] = remote.post("/steps/claim", json=claim).json()["steps"]
    server.kill()
    server.restart()
    item = {"step": step["step"], "lease_token": step["lease_token"]}
    [beat] = remote.post("/steps/heartbeat", json={"items": [item]}).json()["items"]
    assert beat["ok"]
    [done] = remote.post("/steps/complete", json={"items": [item]}).json()["items"]
    assert (done["ok"], done["run_state"]) == (True, "succeeded")


def test_st_08_a_cancel_goes_on_after_the_server_was_killed(
    server, remote, runs, work, project, clock
):
    parent = runs.create([{"tool": "a", "depends_on": []} for _ in range(200)])
    children = [runs.create(["b"], parent_run=parent["id"])["id"] for _ in range(30)]
    assert len(work.claim(max=20, run=parent["id"])) == 20

    def cancel():
        with suppress(httpx.HTTPError):
            remote.post(f"/runs/{parent['id']}/cancel", json={}).raise_for_status()

    thread = threading.Thread(target=cancel)
    thread.start()
    # As soon as the cancel is there, its server dies: somewhere among the children.
    assert wait_until(lambda: runs.get(parent)["state"] == "cancelling", 60)
    server.kill()
    thread.join()
    assert parent["id"] not in [s["run"] for s in work.claim(max=100)]
    clock.advance(seconds=60)
    for _ in range(4):
        sweep(project.id)
    assert runs.get(parent)["state"] == "cancelled"
    assert {runs.get(c)["state"] for c in children} == {"cancelled"}


def test_st_13_a_step_is_ready_with_the_completion_before_it(server, remote, runs):
    """One transaction: there is no moment between them to be killed at."""
    first = runs.create(["s1", "s2", "s3"])
    second = runs.create(["t1"], session=first["session"])
    for _ in range(2):
        [step] = remote.post("/steps/claim", json={"worker": "w"}).json()["steps"]
        item = {"step": step["step"], "lease_token": step["lease_token"]}
        remote.post("/steps/complete", json={"items": [item]})
    server.kill()
    server.restart()
    for tool in ("s3", "t1"):
        [step] = remote.post("/steps/claim", json={"worker": "w"}).json()["steps"]
        assert step["tool"] == tool
        item = {"step": step["step"], "lease_token": step["lease_token"]}
        remote.post("/steps/complete", json={"items": [item]})
    assert runs.get(second)["state"] == "succeeded"


def test_st_15_a_killed_sweeper_holds_nothing(runs, work, clock, project):
    run = runs.create(["a"])
    step = work.claim_one()
    clock.advance(seconds=31)
    sweeper = subprocess.Popen(
        [sys.executable, "-c", STUCK_SWEEPER, run["session"]],
        cwd=ROOT,
        env=os.environ,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert sweeper.stdout is not None
    assert sweeper.stdout.readline().strip() == "holding"
    sweeper.send_signal(signal.SIGKILL)
    sweeper.wait()
    sweep(project.id)
    again = work.claim_one()
    assert (again["step"], again["lost"]) == (step["step"], 1)


STUCK_SWEEPER = """
import os, sys, time
os.environ["DJANGO_SETTINGS_MODULE"] = "agentstate.settings"
import django
django.setup()
from django.db import connection, transaction
with transaction.atomic(), connection.cursor() as cursor:
    cursor.execute("SELECT id FROM agent_sessions WHERE id = %s FOR NO KEY UPDATE",
                   [sys.argv[1]])
    print("holding", flush=True)
    time.sleep(600)
"""


def test_a_claim_needs_no_sweeper_at_all(runs, work, clock):
    runs.create(["a"])
    step = work.claim_one()
    clock.advance(seconds=31)
    assert work.claim_one()["step"] == step["step"]


def test_21_timers_that_expired_while_all_was_down_fire_once(
    runs, work, clock, project
):
    run = runs.create([{"sleep_s": 60, "depends_on": []} for _ in range(1000)])
    clock.advance(seconds=3600)
    while sweep(project.id).total:
        pass
    assert runs.get(run)["state"] == "succeeded"
    done = [e for e in runs.events(run) if e["type"] == "step.done"]
    indexes = [e["payload"]["index"] for e in done]
    assert len(indexes) == len(set(indexes))


def test_a_claim_waits_for_work(server, remote, runs):
    answers = []
    thread = threading.Thread(
        target=lambda: answers.append(
            remote.post("/steps/claim", json={"worker": "w", "wait_s": 20}).json()
        )
    )
    thread.start()
    run = runs.create(["a"])
    thread.join(60)
    assert [s["run"] for s in answers[0]["steps"]] == [run["id"]]


def test_claims_that_wait_hold_no_thread(server, api, runs):
    """Many more claims wait than the server has threads, and others are served."""
    done = []

    def wait(number):
        with httpx.Client(timeout=120) as client:
            answer = client.post(
                f"{server.base_url}/api/v1/steps/claim",
                headers={"Authorization": f"Bearer {api.key}"},
                json={"worker": f"w-{number}", "wait_s": 20, "tools": ["a"]},
            )
            done.extend(answer.json()["steps"])

    threads = [threading.Thread(target=wait, args=[n]) for n in range(30)]
    for thread in threads:
        thread.start()
    run = runs.create(
        [{"tool": "a", "depends_on": []} for _ in range(30)]
        + [{"tool": "none", "depends_on": []}]
    )
    assert server.get("/readyz").status_code == 200
    for thread in threads:
        thread.join(120)
    assert len({step["step"] for step in done}) == 30
    runs.move(run, "cancel")


def test_a_worker_that_hung_up_is_not_claimed_for(server, api, runs, work):
    before = claims_asked(server)
    body = json.dumps({"worker": "gone", "wait_s": 20})
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(
            f"POST /api/v1/steps/claim HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {api.key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        # It has found nothing, and waits.
        assert wait_until(lambda: claims_asked(server) > before, 60)
    for _ in range(20):  # the server hears of the end before it takes these
        assert server.get("/healthz").status_code == 200
    run = runs.create(["a"])
    for _ in range(20):
        assert server.get("/healthz").status_code == 200
    assert runs.states(run) == ["pending"]
    assert work.claim_one()["attempt"] == 1


def claims_asked(server):
    """How often the server has looked for steps to claim."""
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in server.get("/metrics").text.splitlines()
        if line.startswith("agentstate_requests_total") and "steps/claim" in line
    )
