"""Connections to Postgres and Redis stay within what is set, whatever clients do."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from django.conf import settings

from agentstate.processes import wait_until
from tests.fixtures import issue_key

POOL = 4
# The streams read in threads of their own; all of them use the one pool.
STREAMS, CALLS = 60, 300


@pytest.fixture
def busy(server_factory, project):
    """A server with a small pool, a client of it, and a session."""
    server = server_factory(AGENTSTATE_DB_POOL_SIZE=str(POOL))
    headers = {"Authorization": f"Bearer {issue_key(project)}"}
    limits = httpx.Limits(max_connections=200)
    with httpx.Client(
        base_url=server.base_url, headers=headers, timeout=60, limits=limits
    ) as client:
        session = client.post("/api/v1/sessions", json={}).json()["id"]
        yield server, client, f"/api/v1/sessions/{session}/events"


def connections(server, port):
    """How many connections the server's process holds to a port."""
    held = psutil.Process(server.process.pid).net_connections("tcp")
    return sum(
        each.raddr != () and each.raddr.port == port and each.status == "ESTABLISHED"
        for each in held
    )


def call_many(client, path, most):
    """Append CALLS events from many threads; return the statuses and most()'s peak."""
    said = {"events": [{"type": "message.user", "payload": {"content": "x"}}]}

    def append(_):
        status = client.post(path, json=said).status_code
        return status, most()

    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(append, range(CALLS)))
    return {status for status, _ in found}, max(peak for _, peak in found)


def test_op_04_streams_and_calls_share_one_bounded_pool(busy):
    server, client, path = busy
    port = urlsplit(settings.DATABASE_URL).port
    with ExitStack() as streams:
        for number in range(STREAMS):
            stream = streams.enter_context(client.stream("GET", f"{path}/stream"))
            assert stream.status_code == 200
            if number % 2:
                stream.close()  # half of them go away at once
        statuses, peak = call_many(client, path, lambda: connections(server, port))
        assert statuses <= {201, 503}
        assert peak <= POOL
    assert wait_until(lambda: connections(server, port) <= POOL, 120)
    assert client.get(path).status_code == 200


def test_op_05_connections_to_redis_do_not_grow_with_calls(busy):
    server, client, path = busy
    port = urlsplit(settings.REDIS_URL).port
    statuses, first = call_many(client, path, lambda: connections(server, port))
    again, peak = call_many(client, path, lambda: connections(server, port))
    assert statuses == again == {201}
    # One for each thread that answers calls, at most.
    assert peak <= max(first, settings.WEB_THREADS)
