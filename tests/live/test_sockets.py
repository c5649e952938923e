"""Sockets: who may connect, what they hear, and that they hear all of it."""

import asyncio
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from agentstate import metrics
from sessions_app.consumers import LiveConsumer
from tests.people import SECONDS, Socket, append, cookie_of, make_session


def follow(socket: Socket, session_id: str, after_seq: int = 0, id: str = "s") -> None:
    socket.send(action="subscribe", id=id, session=session_id, after_seq=after_seq)


def test_backlog_comes_first_then_what_is_new(api, listen):
    session = make_session(api)
    append(api, session, 3)
    socket = listen()
    follow(socket, session, after_seq=1)
    assert socket.seqs(3) == [2, 3]
    append(api, session, 2)
    assert socket.seqs(5) == [4, 5]


def test_ws_01_a_slow_reader_of_a_burst_ends_with_every_event(api, listen):
    session = make_session(api)
    slow, quick = listen(), listen()
    for socket in (slow, quick):
        follow(socket, session)
    for _ in range(10):
        append(api, session, 50)
    # The case: it reads after a pause, when all has long been told.
    assert quick.seqs(500) == slow.seqs(500) == list(range(1, 501))


def test_ws_01_every_push_says_which_seqs_it_holds(api, listen):
    session = make_session(api)
    append(api, session, 450)
    socket = listen()
    follow(socket, session)
    reached = 0
    while reached < 450:
        push = socket.next("events")
        assert push["first_seq"] == reached + 1
        reached = push["last_seq"]


def test_ws_05_what_is_pushed_can_be_read_at_once(api, listen):
    session = make_session(api)
    socket = listen()
    follow(socket, session)
    with ThreadPoolExecutor(1) as writer:
        writer.submit(lambda: [append(api, session, 1) for _ in range(500)])
        seen = 0
        while seen < 500:
            for event in socket.next("events")["events"]:
                params = {"after_seq": event["seq"] - 1, "limit": 1}
                answer = api.get(f"/api/v1/sessions/{session}/events", params=params)
                [first] = answer.json["items"]
                assert first["id"] == event["id"]
                seen += 1


def test_ws_05_what_is_rolled_back_is_never_pushed(api, listen, project):
    from django.db import transaction

    from sessions_app.services import append_event

    session = make_session(api)
    socket = listen()
    follow(socket, session)
    with pytest.raises(RuntimeError), transaction.atomic():
        append_event(project.id, session, "run.started", {"x": "rolled back"})
        raise RuntimeError
    append(api, session, 1)
    [event] = socket.next("events")["events"]
    assert (event["seq"], event["type"]) == (1, "message.user")


def test_feed_resumes_by_its_cursor(api, listen):
    session = make_session(api)
    append(api, session, 3)
    socket = listen()
    socket.send(action="subscribe", id="f", feed=True, types=["message.*"])
    events = socket.next("events")["events"]
    again = listen()
    again.send(action="subscribe", id="f", feed=True, after=events[0]["cursor"])
    assert [e["seq"] for e in again.next("events")["events"]] == [2, 3]


def test_an_erased_session_is_told(api, listen):
    session = make_session(api)
    socket = listen()
    follow(socket, session)
    assert api.delete(f"/api/v1/sessions/{session}").status_code == 204
    assert socket.next("error")["code"] == "gone"


# --- WS-10: who may connect


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example.test",
        "null",
        "https://app.example.test.evil.test",
        "http://127.0.0.1.evil.test",
    ],
)
def test_ws_10_a_foreign_page_is_refused_before_accept(browse, dial, origin):
    with pytest.raises(InvalidStatus) as refused:
        dial(origin=origin, headers=cookie_of(browse()))
    assert refused.value.response.status_code == 403


def test_ws_10_a_wrong_host_is_refused(server, make_key):
    import socket as sockets

    lines = [
        "GET /ws/ HTTP/1.1",
        "Host: evil.example.test",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version: 13",
    ]
    with sockets.create_connection(("127.0.0.1", server.port), SECONDS) as raw:
        raw.sendall("\r\n".join([*lines, "", ""]).encode())
        assert b" 403 " in raw.recv(4096).split(b"\r\n")[0]


def test_ws_10_a_cookie_without_origin_does_not_count(browse, dial, project):
    socket = Socket(dial(headers=cookie_of(browse())))
    socket.send(action="hello", project=project.slug)
    assert socket.next("error")["code"] == "unauthenticated"
    assert socket.close_code() == 4401


def test_ws_10_a_signed_in_member_is_welcome(server, browse, dial, project):
    socket = Socket(dial(origin=server.base_url, headers=cookie_of(browse("viewer"))))
    socket.send(action="hello", project=project.slug)
    assert socket.next("welcome")["project"] == project.slug


def test_ws_10_no_key_stands_in_an_address_or_a_log_line(server, dial, make_key):
    key = make_key()
    with pytest.raises(InvalidStatus):
        dial(path=f"/ws/?key={key}")
    by_protocol = Socket(dial(subprotocols=["agentstate.v1", f"agentstate.key.{key}"]))
    assert by_protocol.next("welcome")
    assert by_protocol.connection.subprotocol == "agentstate.v1"
    assert key not in server.log


@pytest.mark.parametrize("role", ["reviewer", None])
def test_who_may_not_see_sessions_hears_nothing(server, browse, dial, project, role):
    client = browse("viewer") if role else browse(project=project)
    from access_app.models import Member

    members = Member.objects.filter(project=project)
    members.update(role=role) if role else members.delete()
    socket = Socket(dial(origin=server.base_url, headers=cookie_of(client)))
    socket.send(action="hello", project=project.slug)
    assert socket.next("error")["code"] == "unauthenticated"


def test_another_projects_session_is_not_there(other_api, listen):
    socket = listen()
    follow(socket, make_session(other_api))
    assert socket.next("error")["code"] == "gone"


def test_a_bound_key_hears_its_own_only(api, make_key, listen):
    mine, other = make_session(api, subject="u-1"), make_session(api, subject="u-2")
    socket = listen(key=make_key(subject="u-1"))
    follow(socket, other)
    assert socket.next("error")["code"] == "gone"
    append(api, other, 1)
    append(api, mine, 1)
    socket.send(action="subscribe", id="f", feed=True, types=["message.*"])
    assert {e["session"] for e in socket.next("events")["events"]} == {mine}


def test_a_revoked_key_hears_no_more(api, make_key, listen):
    from access_app.models import ApiKey
    from access_app.services import revoke_key

    key = make_key()
    session = make_session(api)
    socket = listen(key=key)
    follow(socket, session)
    row = ApiKey.objects.get(prefix=key.split("_")[1])
    revoke_key(row.project_id, row.id)
    assert socket.close_code() == 4401


def test_a_removed_member_hears_no_more(server, api, browse, dial, project):
    from access_app.models import Member

    socket = Socket(dial(origin=server.base_url, headers=cookie_of(browse("viewer"))))
    socket.send(action="hello", project=project.slug)
    socket.next("welcome")
    follow(socket, make_session(api))
    Member.objects.filter(project=project).delete()
    assert socket.close_code() == 4401


def test_a_viewer_from_whom_payloads_are_hidden_gets_none(
    server, api, browse, dial, project
):
    from access_app.roles import HIDE_FROM_VIEWERS
    from access_app.services import change_settings

    change_settings(project.id, {HIDE_FROM_VIEWERS: True}, actor="test", reason="t")
    session = make_session(api)
    append(api, session, 1, content="the secret word")
    socket = Socket(dial(origin=server.base_url, headers=cookie_of(browse("viewer"))))
    socket.send(action="hello", project=project.slug)
    socket.next("welcome")
    for format_ in ("html", "json"):
        socket.send(
            action="subscribe", id=format_, session=session, format=format_, after_seq=0
        )
        assert "the secret word" not in json.dumps(socket.next())


# --- OWN-15: bad frames


@pytest.mark.parametrize(
    "frame",
    ["not json", "[]", '{"action":"__init__"}', '{"action":{}}', "\x00", '{"a":1e999}'],
)
def test_own_15_a_bad_frame_is_answered_and_harms_nobody(api, listen, frame):
    session = make_session(api)
    bad, good = listen(), listen()
    for socket in (bad, good):
        follow(socket, session)
    bad.connection.send(frame)
    assert bad.next("error")["code"] == "bad_message"
    append(api, session, 1)
    assert good.seqs(1) == bad.seqs(1) == [1]


def test_own_15_binary_is_answered(listen):
    socket = listen()
    socket.connection.send(b"\x00\x01")
    assert socket.next("error")["code"] == "bad_message"


def test_own_15_ten_megabytes_close_the_socket_alone(api, listen):
    session = make_session(api)
    bad, good = listen(), listen()
    follow(good, session)
    with pytest.raises(ConnectionClosed):
        bad.connection.send("x" * 10_000_000)
        bad.connection.recv(timeout=SECONDS)
    append(api, session, 1)
    assert good.seqs(1) == [1]


def test_own_15_a_thousand_pings_a_second_close_the_socket_alone(api, listen):
    session = make_session(api)
    bad, good = listen(), listen()
    follow(good, session)
    try:
        for _ in range(1000):
            bad.send(action="ping")
    except ConnectionClosed:
        pass
    assert bad.close_code() == 4429
    append(api, session, 1)
    assert good.seqs(1) == [1]


def test_own_15_subscriptions_are_limited(api, listen):
    session = make_session(api)
    socket = listen()
    for number in range(21):
        follow(socket, session, id=f"s{number}")
    assert socket.next("error")["code"] == "too_many_subscriptions"


def test_ws_07_dead_connections_leave_the_group(api, listen, server):
    """200 of the case's 1000 here; the soak does the rest."""
    session = make_session(api)
    dead = [listen() for _ in range(200)]
    for each in dead:
        follow(each, session)
    alive = listen()
    follow(alive, session)
    for each in dead:
        reset(each.connection)
    append(api, session, 1)
    assert alive.seqs(1) == [1]
    wait_for_sockets(server, at_most=10)


def wait_for_sockets(server: Any, at_most: int) -> None:
    from agentstate.processes import wait_until

    def few() -> bool:
        lines = server.get("/metrics").text.splitlines()
        [line] = [x for x in lines if x.startswith("agentstate_sockets ")]
        return float(line.split()[1]) <= at_most

    assert wait_until(few, SECONDS)


def test_redis_is_not_needed(api, make_key, server_factory, dial):
    server = server_factory(REDIS_URL="redis://127.0.0.1:1/0")
    session = make_session(api)
    socket = Socket(dial(server=server))
    socket.send(action="hello", key=make_key())
    socket.next("welcome")
    follow(socket, session)
    append(api, session, 2)
    assert socket.seqs(2) == [1, 2]


def test_ws_03_a_vanished_client_is_closed_within_two_pings(make_key, server_factory):
    """It answers no ping: as when the network is gone without a close."""
    import socket as sockets

    server = server_factory(AGENTSTATE_SOCKET_PING_SECONDS="1")
    lines = [
        "GET /ws/ HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Protocol: agentstate.v1, agentstate.key.{make_key()}",
    ]
    with sockets.create_connection(("127.0.0.1", server.port), SECONDS) as raw:
        raw.sendall("\r\n".join([*lines, "", ""]).encode())
        assert b" 101 " in raw.recv(4096).split(b"\r\n")[0]
        wait_for_sockets(server, at_most=0)


# --- Leaving is no failure


def reset(connection: Any) -> None:
    """Leave as a process that was killed does: by a reset, without a word."""
    import socket as sockets
    import struct

    raw = connection.socket
    raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, struct.pack("ii", 1, 0))
    raw.shutdown(sockets.SHUT_RD)
    raw.close()


LEAVING = [lambda connection: connection.close(), reset]


@pytest.mark.parametrize("leave", LEAVING, ids=["closes", "resets"])
def test_clients_that_leave_are_no_failures(api, make_key, server_factory, dial, leave):
    """Before hello, after it, under a backlog, and while events are pushed."""
    server = server_factory()
    session, busy, key = make_session(api), make_session(api), make_key()
    append(api, busy, 300, content="x" * 2000)
    for moment in ("dialled", "greeted", "backlog", "pushed", "asking") * 8:
        socket = Socket(dial(server=server))
        if moment != "dialled":
            socket.send(action="hello", key=key)
            socket.next("welcome")
        if moment == "backlog":
            follow(socket, busy)
        elif moment == "pushed":
            follow(socket, session)
            append(api, session, 1)
            socket.next("events")
            append(api, session, 1)
        elif moment == "asking":
            for number in range(10):
                follow(socket, session, id=f"s{number}")
        leave(socket.connection)
    wait_for_sockets(server, at_most=0)
    assert server.log == ""


@pytest.mark.parametrize("moment", ["hello", "accept"])
def test_a_socket_whose_client_is_gone_ends_quietly(moment, make_key, caplog):
    """The server finds out by sending, and may tell the socket only later."""
    messages = [
        {"type": "websocket.connect"},
        {
            "type": "websocket.receive",
            "text": json.dumps({"action": "hello", "key": make_key()}),
        },
    ]
    gone = {"hello": "websocket.send", "accept": "websocket.accept"}[moment]
    before = metrics.open_sockets.count
    asyncio.run(asyncio.wait_for(serve(messages, gone_at=gone), SECONDS))
    assert metrics.open_sockets.count == before
    assert [r for r in caplog.records if r.levelno > logging.DEBUG] == []


def test_a_real_failure_of_a_sockets_work_is_logged(caplog, monkeypatch):
    async def broken(self):
        raise RuntimeError("this is a fault of ours")

    monkeypatch.setattr(LiveConsumer, "_stay_alive", broken)
    asyncio.run(asyncio.wait_for(serve([{"type": "websocket.connect"}]), SECONDS))
    [record] = [r for r in caplog.records if r.levelno > logging.DEBUG]
    assert (record.levelname, record.message) == ("ERROR", "a socket's work failed")


async def serve(messages: list[dict[str, Any]], gone_at: str = "") -> None:
    """One socket that is told `messages`, and is over once it sends what fails."""
    over = asyncio.Event()
    waiting = list(messages)

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop(0)
        await over.wait()
        return {"type": "websocket.disconnect", "code": 1006}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == gone_at:
            over.set()
            raise OSError("the client has left")
        if message["type"] == "websocket.close":
            over.set()

    scope = {"type": "websocket", "path": "/ws/", "subprotocols": []}
    scope["headers"] = [(b"host", b"localhost")]
    await LiveConsumer.as_asgi()(scope, receive, send)
