"""What holds while `manage.py serve` runs. These tests share one."""

import json
import os
import re
import signal
import stat
import subprocess

import httpx
import psutil
import psycopg

from agentstate.processes import wait_until
from tests.event_source import EventSource
from tests.ops.supervised import Supervised


def test_it_says_ready_once_and_then_the_way_in(served):
    assert re.findall(r"^ready .*$", served.out, re.M) == [f"ready {served.url}"]
    assert served.out.startswith("ready ")


def test_the_curl_line_works_when_pasted(served):
    [line] = [line for line in served.out.splitlines() if line.startswith("curl ")]
    shell = ["bash", "-c", f"{line} -w '%{{http_code}}'"]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("201"), done


def test_the_admin_password_opens_the_admin(served):
    password = re.search(r"user admin, password\n +(\S+)", served.out)[1]
    with httpx.Client(base_url=served.url, follow_redirects=True, timeout=60) as http:
        page = http.get("/admin/")
        token = re.search(r'csrfmiddlewaretoken" value="([^"]+)', page.text)[1]
        form = {"username": "admin", "password": password, "next": "/admin/"}
        http.post(
            str(page.url),
            data=form | {"csrfmiddlewaretoken": token},
            headers={"Referer": str(page.url)},
        )
        opened = http.get("/admin/")
    assert (opened.status_code, opened.url.path) == (200, "/admin/")


def test_the_documentation_works_without_the_internet(served):
    page = httpx.get(f"{served.url}/api/v1/docs", timeout=60)
    assert page.status_code == 200
    sources = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert sources and all(source.startswith("/static/") for source in sources)
    for source in sources:
        assert httpx.get(served.url + source, timeout=60).status_code == 200, source


def test_the_schema_is_served(served):
    answer = httpx.get(f"{served.url}/api/v1/schema", timeout=60)
    assert answer.status_code == 200
    assert "/api/v1/sessions" in answer.text


def test_without_the_demo_there_is_no_demo_agent(served):
    assert not (served.data_dir / "run" / "demo.pid").exists()


def test_secrets_are_readable_by_their_owner_alone(served):
    for name in ("secrets.json", "services.json"):
        mode = stat.S_IMODE((served.data_dir / name).stat().st_mode)
        assert mode == 0o600, name
    # As root the services' own user may pass through the folder, and nobody may look.
    open_to_all = 0o711 if os.geteuid() == 0 else 0o700
    assert stat.S_IMODE(served.data_dir.stat().st_mode) == open_to_all


def test_nothing_listens_beyond_loopback(served):
    served.remember_tree()
    listening = [
        connection.laddr
        for process in served.tree
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len({address.port for address in listening}) == 3  # web, Postgres, Valkey
    assert {address.ip for address in listening} == {"127.0.0.1"}


def test_hot_statements_are_parsed_once_where_postgres_is_our_own(served):
    """Their values travel apart from them, so one text serves all calls."""
    with served.client(served.any_key()) as http:
        session = http.post("/api/v1/sessions", json={}).json()["id"]
        said = {"events": [{"type": "message.user", "payload": {"content": "x"}}]}
        answer = http.post(f"/api/v1/sessions/{session}/events", json=said)
    assert answer.status_code == 201
    services = json.loads((served.data_dir / "services.json").read_text())
    with psycopg.connect(services["database_url"]) as connection:
        sent = connection.execute(
            "SELECT query FROM pg_stat_activity WHERE query LIKE %s",
            ["%FROM agentstate_append%"],
        ).fetchall()
    assert sent and all("$1" in query and session not in query for (query,) in sent)


def test_timers_fire_though_nobody_asks_for_work(served):
    """The background job comes by every ten seconds."""
    with served.client(served.any_key()) as http:
        plan = {"session_key": "naps", "steps": [{"sleep_s": 0.1}]}
        run = http.post("/api/v1/runs", json=plan).json()["id"]

        def has_woken():
            return http.get(f"/api/v1/runs/{run}").json()["state"] == "succeeded"

        assert wait_until(has_woken, 60)


def test_no_password_is_on_a_command_line(served):
    secrets = (served.data_dir / "secrets.json").read_text()
    served.remember_tree()
    for process in served.tree:
        for argument in process.cmdline():
            assert len(argument) < 16 or argument not in secrets


def test_a_second_start_on_the_folder_is_refused(served):
    second = Supervised(served.folder / "second")
    second.environment["AGENTSTATE_DATA_DIR"] = str(served.data_dir)
    second.launch()
    assert second.process.wait(120) != 0
    assert f"in use by process {served.process.pid}" in second.err
    assert httpx.get(f"{served.url}/healthz", timeout=60).status_code == 200


def test_a_taken_port_names_its_holder(served):
    second = Supervised(served.folder / "third")
    second.environment["AGENTSTATE_PORT"] = str(served.port)
    second.launch()
    assert second.process.wait(120) != 0
    assert f"port {served.port} is taken by process " in second.err
    assert "agentstate.serving" in second.err or "manage.py serve" in second.err
    assert not (second.data_dir / "postgres").exists()


def test_a_dead_web_process_is_replaced(served):
    before = served.pid_of("web-1")
    os.kill(before, signal.SIGKILL)
    assert wait_until(lambda: served.is_replaced("web-1", before), 120)
    assert httpx.get(f"{served.url}/readyz", timeout=30).status_code == 200


def test_a_dead_worker_is_replaced(served):
    before = served.pid_of("worker")
    os.kill(before, signal.SIGKILL)
    assert wait_until(lambda: served.is_replaced("worker", before), 120)


def test_requests_and_streams_go_on_after_postgres_was_killed(served):
    http = served.client(served.key)
    for _ in range(20):  # fill the pools of both web processes
        assert http.get("/api/v1/sessions").status_code == 200
    session = http.post("/api/v1/sessions", json={}).json()["id"]
    events = f"/api/v1/sessions/{session}/events"
    said = {"events": [{"type": "message.user", "payload": {"content": "x"}}]}
    assert http.post(events, json=said).status_code == 201
    stream = EventSource(f"{served.url}{events}/stream", served.key)
    messages = stream.connect()
    assert next(messages).data["seq"] == 1
    before = served.pid_of("postgres")
    os.kill(before, signal.SIGKILL)
    assert wait_until(lambda: served.is_replaced("postgres", before), 120)
    assert wait_until(lambda: served.health().get("status") == "ready", 120)
    statuses = {http.get("/api/v1/sessions").status_code for _ in range(40)}
    assert statuses == {200}
    assert http.post(events, json=said).status_code == 201
    assert next(messages).data["seq"] == 2
    assert stream.connections == 1
    messages.close()


def test_without_redis_it_is_degraded_and_recovers(served):
    valkey = served.pid_of("valkey")
    os.kill(valkey, signal.SIGSTOP)  # it hangs, the worst way to be gone
    try:
        assert served.health()["status"] == "degraded"
        assert served.health()["checks"]["redis"] == "unreachable"
        assert httpx.get(f"{served.url}/healthz", timeout=60).status_code == 200
        answer = served.client(served.key).post("/api/v1/sessions", json={"agent": "a"})
        assert answer.status_code == 201
    finally:
        os.kill(valkey, signal.SIGCONT)
    assert wait_until(lambda: served.health()["checks"]["redis"] == "ok", 120)
    os.kill(valkey, signal.SIGKILL)
    assert wait_until(lambda: served.is_replaced("valkey", valkey), 120)
    assert wait_until(lambda: served.health()["status"] == "ready", 120)


def test_logs_are_json_and_hold_no_key(served):
    wrong = "as_0123456789ab_" + "f" * 64
    assert served.client(wrong).get("/api/v1/sessions").status_code == 401
    log = served.err
    assert "f" * 64 not in log
    assert served.key not in log and served.key.rpartition("_")[2] not in log
