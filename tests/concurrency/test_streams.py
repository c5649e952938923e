"""The live streams over real sockets: cut, resumed, ended, many at once."""

import asyncio
import random
import socket
import threading
from uuid import UUID

import httpx
import pytest
from django.db import connection

from access_app.credentials import KeyCredential
from access_app.models import ApiKey
from access_app.services import revoke_key
from agentstate import live
from agentstate.processes import wait_until
from sessions_app.tailer import Follower, Following, Tailer
from tests.cutting_proxy import CuttingProxy
from tests.event_source import EventSource
from tests.factories import MISSING, fetch, make_session

FEED = "/api/v1/events/stream"


@pytest.fixture
def proxy(server):
    between = CuttingProxy(server.base_url)
    yield between
    between.close()


def in_background(work):
    def run():
        try:
            work()
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def stream_url(base_url, session):
    return f"{base_url}{session.url}/events/stream"


@pytest.mark.parametrize("events", [300, pytest.param(5000, marks=pytest.mark.soak)])
def test_acceptance_33_a_session_cut_at_random_has_no_gap_and_no_repeat(
    proxy, session, events
):
    chance = random.Random(33)
    proxy.cut_after = [chance.randint(1, 6000) for _ in range(events // 5)]

    def write():
        for first in range(0, events, 20):
            session.append(*[f"{first + n}:" + "ä" * (n * 7) for n in range(20)])

    writer = in_background(write)
    reader = EventSource(stream_url(proxy.base_url, session), session.api.key)
    reader.read(events)
    writer.join()
    assert reader.ids == [str(n) for n in range(1, events + 1)]
    assert reader.connections > 10
    assert [m.data for m in reader.messages] == session.events(limit=1000)[:events] or (
        events > 1000
    )


def test_acceptance_33_the_feed_cut_at_random_has_no_gap_and_no_repeat(
    proxy, api, project
):
    chance = random.Random(34)
    proxy.cut_after = [chance.randint(1, 8000) for _ in range(60)]
    sessions = [make_session(api) for _ in range(3)]
    writers = [
        in_background(lambda s=s: [s.append(f"{n}") for n in range(60)])
        for s in sessions
    ]
    reader = EventSource(f"{proxy.base_url}{FEED}", api.key).read(183)
    for writer in writers:
        writer.join()
    got = [(m.data["session"], m.data["seq"]) for m in reader.messages]
    listed = api.get("/api/v1/events", params={"limit": 1000}).json["items"]
    assert got == [(e["session"], e["seq"]) for e in listed]
    assert len(set(got)) == 183
    assert reader.connections > 10


def test_a_server_that_is_killed_loses_and_repeats_nothing(server_factory, session):
    server = server_factory()
    session.append("1", "2")
    reader = EventSource(stream_url(server.base_url, session), session.api.key)
    reader.read(2)
    server.kill()
    session.append("3")
    server.restart()
    session.append("4")
    reader.read(4)
    assert reader.ids == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("params", "last_id", "expected"),
    [
        ({}, None, ["1", "2", "3"]),
        ({"after_seq": 1}, None, ["2", "3"]),
        ({"after_seq": -1}, None, ["0", "1", "2", "3"]),
        ({}, "2", ["3"]),
        ({"after_seq": 1}, "2", ["3"]),
        ({"types": "acme.*"}, None, ["2"]),
    ],
)
def test_a_stream_begins_where_it_is_told_to(
    server, session, params, last_id, expected
):
    session.append("1", {"type": "acme.x", "payload": {}}, "3")
    reader = EventSource(
        stream_url(server.base_url, session), session.api.key, **params
    )
    reader.last_id = last_id
    assert reader.read(len(expected)).ids == expected
    session.append("4", {"type": "acme.x", "payload": {}})
    more = ["5"] if params.get("types") else ["4", "5"]
    assert reader.read(len(expected) + len(more)).ids == expected + more


@pytest.mark.parametrize(
    ("path", "headers", "refusal"),
    [
        (f"/api/v1/sessions/{MISSING}/events/stream", {}, (404, "session_not_found")),
        (FEED + "?after=x", {}, (422, "bad_cursor")),
        (FEED + "?limit=5", {}, (422, "unknown_parameter")),
        (FEED, {"Last-Event-ID": "7"}, (422, "bad_cursor")),
        (FEED, {"Authorization": "Bearer nobody"}, (401, "unauthenticated")),
    ],
)
def test_a_stream_that_may_not_be_is_refused_like_any_call(
    server, api, path, headers, refusal
):
    answer = server.get(path, headers={"Authorization": f"Bearer {api.key}"} | headers)
    assert (answer.status_code, answer.json()["code"]) == refusal


def test_a_wrong_last_event_id_is_422(server, session):
    reader = EventSource(stream_url(server.base_url, session), session.api.key)
    for wrong in ("x", "-1", "1.5", "9" * 30):
        reader.last_id = wrong
        reader.read(1)
        assert reader.refusal == (422, "invalid")


def open_streams(server):
    text = server.get("/metrics").text
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("agentstate_streams")
    )


def ended(reader):
    """A thread that follows until the server ends the connection."""
    return in_background(lambda: list(reader.connect()))


def test_a_revoked_key_ends_its_streams_and_no_other(
    server, session, make_key, project
):
    text = make_key()
    session.append("1")
    mine = EventSource(stream_url(server.base_url, session), text)
    other = EventSource(stream_url(server.base_url, session), session.api.key)
    threads = ended(mine), ended(other)
    assert wait_until(lambda: mine.messages and other.messages, 60)
    revoke_key(project.id, ApiKey.objects.get(prefix=text.split("_")[1]).id)
    threads[0].join(60)
    assert not threads[0].is_alive()
    session.append("2")
    assert wait_until(lambda: len(other.messages) == 2, 60)
    assert mine.ids == ["1"]
    mine.read(2)
    assert mine.refusal == (401, "unauthenticated")
    session.api.delete(session.url)
    threads[1].join(60)


def test_an_erased_session_ends_its_streams(server, session):
    session.append("1")
    reader = EventSource(stream_url(server.base_url, session), session.api.key)
    thread = ended(reader)
    assert wait_until(lambda: reader.messages, 60)
    session.api.delete(session.url)
    thread.join(60)
    assert not thread.is_alive()
    reader.read(2)
    assert reader.refusal == (404, "session_not_found")


def test_a_client_that_goes_away_frees_its_place(server, session):
    assert wait_until(lambda: open_streams(server) == 0, 60)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(
            f"GET {session.url}/events/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {session.api.key}\r\n\r\n".encode()
        )
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        assert wait_until(lambda: open_streams(server) == 1, 60)
    assert wait_until(lambda: open_streams(server) == 0, 60)


def test_a_slow_client_holds_up_nobody_and_misses_nothing(server, session):
    """It takes nothing while 8 MB are written; then all of it, in order."""
    url = stream_url(server.base_url, session)
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        slow.connect(("127.0.0.1", server.port))
        slow.sendall(
            f"GET {session.url}/events/stream HTTP/1.0\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {session.api.key}\r\n\r\n".encode()
        )
        session.append("begin")
        assert slow.recv(50)
        for _ in range(8):
            session.append("x" * 1_000_000)
        quick = EventSource(url, session.api.key).read(9)
        assert quick.ids == [str(n) for n in range(1, 10)]
        assert server.get("/healthz").status_code == 200
        slow.settimeout(60)
        received, tail = 0, b""
        while b"id: 9\n" not in tail:
            part = slow.recv(1 << 20)
            assert part, "the server ended it"
            received += len(part)
            tail = tail[-20:] + part
        assert received > 7_000_000


class Sent:
    """Stands where the ASGI server does: takes what the live part sends."""

    def __init__(self, takes=True):
        self.text = b""
        self.takes = takes

    async def __call__(self, message):
        if not self.takes:
            await asyncio.Event().wait()
        self.text += message.get("body", b"")


def follower_of(session):
    [(project_id,)] = fetch(
        "SELECT project_id FROM agent_sessions WHERE id = %s", session.id
    )
    following = Following(project_id, UUID(session.id))
    return Follower(following, KeyCredential(session.api.key))


def test_a_quiet_stream_is_kept_alive(session, monkeypatch):
    monkeypatch.setattr(live, "KEEP_ALIVE_SECONDS", 0.02)
    sent, follower = Sent(), follower_of(session)
    topic = follower.following.topic()

    async def run():
        task = asyncio.create_task(live._stream(topic, follower, 0, sent))
        while sent.text.count(b": still here\n\n") < 3:
            await asyncio.sleep(0.01)
        task.cancel()

    session.append("1")
    asyncio.run(run())
    assert sent.text.startswith(b"retry: 1000\n\nid: 1\ndata: {")


def test_a_client_that_takes_nothing_is_cut_off(session, monkeypatch):
    monkeypatch.setattr(live, "SEND_SECONDS", 0.05)
    follower = follower_of(session)
    topic = follower.following.topic()
    with pytest.raises(TimeoutError):
        asyncio.run(live._stream(topic, follower, 0, Sent(takes=False)))


def test_the_tailer_outlives_whatever_it_meets(session, monkeypatch):
    """A fault in one round is logged; the next round rings all the same."""
    tailer, follower = Tailer(), follower_of(session)
    faults = [RuntimeError("on purpose")]
    real = Tailer._look

    async def look(self):
        if faults:
            raise faults.pop()
        await real(self)

    monkeypatch.setattr(Tailer, "_look", look)

    async def run():
        with tailer.follow(follower):
            assert await follower.wait(60)
            assert not follower.over
        await tailer.task

    asyncio.run(run())
    assert faults == []


@pytest.mark.parametrize("streams", [200])
def test_two_hundred_streams_on_one_server(server, session, api, streams):
    """All hear of an event; Postgres sees a few connections, REST goes on."""
    url = stream_url(server.base_url, session)
    headers = {"Authorization": f"Bearer {api.key}"}

    async def follow(client, begun):
        async with client.stream("GET", url, headers=headers) as answer:
            assert answer.status_code == 200
            seen = []
            async for line in answer.aiter_lines():
                if line.startswith("retry"):
                    begun.release()
                if line.startswith("id: "):
                    seen.append(line)
                if len(seen) == 3:
                    return seen

    async def run():
        begun = asyncio.Semaphore(0)
        limits = httpx.Limits(max_connections=streams + 10)
        async with httpx.AsyncClient(timeout=120, limits=limits) as client:
            tasks = [asyncio.create_task(follow(client, begun)) for _ in range(streams)]
            for _ in range(streams):
                await begun.acquire()
            connections = await asyncio.to_thread(server_connections)
            for text in ("a", "b", "c"):
                answer = await client.post(
                    f"{server.base_url}{session.url}/events",
                    json={
                        "events": [
                            {"type": "message.user", "payload": {"content": text}}
                        ]
                    },
                    headers=headers,
                )
                assert answer.status_code == 201
            return connections, await asyncio.gather(*tasks)

    connections, seen = asyncio.run(run())
    assert seen == [["id: 1", "id: 2", "id: 3"]] * streams
    assert connections < 40
    assert wait_until(lambda: open_streams(server) == 0, 60)


def server_connections():
    try:
        [(count,)] = fetch(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND backend_type = 'client backend'"
        )
        return count
    finally:
        connection.close()
