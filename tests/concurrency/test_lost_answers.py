"""Acceptance 10: answers that never arrive, servers that die, bodies cut short."""

import json
import random
import socket
import threading
from uuid import uuid4

import httpx
import pytest

from sessions_app.models import Session
from tests.cutting_proxy import CuttingProxy
from tests.factories import fetch, make_session, says

WRITES = {
    "create a session": ("POST", "/api/v1/sessions", {"key": "k", "state": {"n": 1}}),
    "update it": ("PATCH", "{session}", {"title": "T", "metadata": {"n": 1.50}}),
    "close it": ("POST", "{session}/close", {"reason": "done"}),
    "reopen it": ("POST", "{closed}/reopen", {"reason": "on"}),
    "fork it": ("POST", "{session}/fork", {"at_seq": 1}),
    "lock it": ("POST", "{session}/lock", {"holder": "w-1"}),
    "erase it": ("DELETE", "{session}", None),
    "append": ("POST", "{session}/events", {"events": [says("x"), says("y")]}),
    "put the state": (
        "PUT",
        "{session}/state",
        {"state": {"a": 1}, "expected_version": 0},
    ),
    "patch the state": (
        "PATCH",
        "{session}/state",
        {"merge": {"a": 1}, "expected_version": 0},
    ),
    "make a key": ("POST", "/api/v1/keys", {"name": "n", "scopes": ["sessions:read"]}),
}


@pytest.fixture
def proxy(server):
    between = CuttingProxy(server.base_url)
    yield between
    between.close()


def rows_of(project):
    """Every row of the project but the answers kept, and when a key was last used."""
    tables = fetch(
        "SELECT table_name FROM information_schema.columns"
        " WHERE column_name = 'project_id' AND table_schema = 'public'"
        " AND table_name <> 'access_idempotency'"
    )
    return {
        table: sorted(
            fetch(
                f"SELECT (to_jsonb(t) - 'last_used_at')::text FROM"
                f' (SELECT * FROM "{table}" WHERE project_id = %s) t',
                project.id,
            )
            if table not in ("agent_events", "agent_sessions", "agent_snapshots")
            else fetch(
                f'SELECT t::text FROM "{table}" t WHERE project_id = %s', project.id
            )
        )
        for (table,) in tables
    }


def send(base_url, api, call, key):
    method, path, body = call
    return httpx.request(
        method,
        base_url + path,
        json=body,
        headers={"Authorization": f"Bearer {api.key}", "Idempotency-Key": key},
        timeout=30,
    )


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_acceptance_10_a_write_whose_answer_is_lost_has_one_effect(
    server, proxy, api, project, write
):
    session, closed = make_session(api), make_session(api)
    session.append("first")
    api.post(f"{closed.url}/close")
    call = (write[0], write[1].format(session=session.url, closed=closed.url), write[2])
    before = rows_of(project)
    proxy.lose_answers = 1
    with pytest.raises(httpx.TransportError):
        send(proxy.base_url, api, call, "lost-1")
    done = rows_of(project)
    assert done != before
    first = send(proxy.base_url, api, call, "lost-1")
    assert first.is_success, first.text
    assert first.headers["Idempotency-Replayed"] == "true"
    second = send(server.base_url, api, call, "lost-1")
    assert (second.status_code, second.content) == (first.status_code, first.content)
    assert rows_of(project) == done


def test_acceptance_10_the_server_dies_between_commit_and_answer(
    server_factory, api, project
):
    """The proxy has the answers in hand, so all is committed when it is killed."""
    server = server_factory()
    proxy = CuttingProxy(server.base_url)
    sessions = {name: make_session(api) for name in ("session", "closed")}
    sessions["session"].append("first")
    api.post(f"{sessions['closed'].url}/close")
    urls = {name: s.url for name, s in sessions.items()}
    calls = {
        name: (method, path.format(**urls), body)
        for name, (method, path, body) in WRITES.items()
        if name not in ("erase it", "lock it", "close it")
    }
    try:
        for name, call in calls.items():
            proxy.lose_answers = 1
            with pytest.raises(httpx.TransportError):
                send(proxy.base_url, api, call, name)
        server.kill()
        done = rows_of(project)
        server.restart()
        for name, call in calls.items():
            if name in ("put the state", "patch the state"):
                continue  # of the two only the first had an effect
            answer = send(proxy.base_url, api, call, name)
            assert answer.headers.get("Idempotency-Replayed") == "true", (name, answer)
        assert rows_of(project) == done
    finally:
        proxy.close()


def test_a_server_killed_again_and_again_stores_each_append_once(
    server_factory, session
):
    """SIGKILL at random moments; each client repeats until it has its answer."""
    server = server_factory()
    chance = random.Random(10)
    kills, per_client, clients = 2, 30, 4
    done = threading.Semaphore(0)
    failures = []

    def client(name):
        try:
            for n in range(per_client):
                key = f"{name}-{n}"
                while True:
                    try:
                        answer = send(
                            server.base_url,
                            session.api,
                            ("POST", f"{session.url}/events", {"events": [says(key)]}),
                            key,
                        )
                    except httpx.TransportError:
                        continue
                    if answer.status_code == 201:
                        break
                    assert answer.status_code in (409, 503), answer.text
                done.release()
        except BaseException as exc:
            failures.append(exc)
            done.release(per_client)

    threads = [threading.Thread(target=client, args=(f"c{n}",)) for n in range(clients)]
    for thread in threads:
        thread.start()
    for _ in range(kills):
        for _ in range(chance.randint(5, 20)):
            done.acquire()
        server.kill()
        server.restart()
    for thread in threads:
        thread.join()
    assert failures == []
    texts = session.texts()
    assert sorted(texts) == sorted(
        f"c{c}-{n}" for c in range(clients) for n in range(per_client)
    )
    for name in range(clients):
        own = [text for text in texts if text.startswith(f"c{name}-")]
        assert own == [f"c{name}-{n}" for n in range(per_client)]
    assert [e["seq"] for e in session.events(limit=1000)] == list(range(1, 121))


@pytest.mark.parametrize("missing", [1, 20, "all"])
@pytest.mark.parametrize("ends", ["close", "half"])
def test_ev_19_a_body_cut_short_stores_nothing(server, session, missing, ends):
    """Messages are taken whole: less than the announced length is no append."""
    body = json.dumps({"events": [says("Your refund of 40 EUR")]}).encode()
    cut = body[: 0 if missing == "all" else -missing]
    key = str(uuid4())
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(
            f"POST {session.url}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {session.api.key}\r\nIdempotency-Key: {key}\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + cut
        )
        if ends == "half":
            client.shutdown(socket.SHUT_WR)
            client.settimeout(20)
            answer = client.recv(1000)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    whole = send(
        server.base_url,
        session.api,
        ("POST", f"{session.url}/events", {"events": [says("whole")]}),
        key,
    )
    assert whole.status_code == 201
    assert session.texts() == ["whole"]


def test_ev_19_a_body_longer_than_announced_is_no_part_of_the_append(server, session):
    body = json.dumps({"events": [says("first")]}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(
            f"POST {session.url}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {session.api.key}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
            + b"garbage"
        )
        client.settimeout(20)
        assert client.recv(1000).startswith(b"HTTP/1.1 ")
    assert Session.objects.get(pk=session.id).last_seq in (0, 1)
    assert session.texts() in ([], ["first"])
