"""Clients that leave in the middle of a call: that is no failure, and is not logged."""

import socket
import struct

import pytest

from agentstate.processes import wait_until
from tests.factories import make_session

FEED = "/api/v1/events/stream"
CLAIM = b'{"worker": "w", "wait_s": 20}'


def call(server, key, method, path, body=b"", announced=None, reads=0):
    """A connection on which one call was sent, and the first of its answer read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    client.connect(("127.0.0.1", server.port))
    client.settimeout(60)
    length = len(body) if announced is None else announced
    client.sendall(
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n".encode()
        + body
    )
    if reads:
        assert client.recv(reads)
    return client


def closes(client):
    client.close()


def resets(client):
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("leave", [closes, resets])
def test_who_leaves_is_no_failure(api, server_factory, leave):
    server = server_factory()
    session = make_session(api)
    for _ in range(6):
        session.append("x" * 500_000)
    artifact = api.post(
        f"{session.url}/artifacts", data=b"a" * 3_000_000, params={"name": "a.bin"}
    ).json["id"]
    stream = f"{session.url}/events/stream"
    calls = [
        ("GET", FEED, {}),  # leaves before there is any answer
        ("GET", stream, {"reads": 50}),  # under the backlog
        ("GET", f"{stream}?after_seq=6", {"reads": 500}),  # while nothing comes
        ("POST", "/api/v1/steps/claim", {"body": CLAIM}),  # while it waits for work
        ("POST", f"{session.url}/events", {"body": b"{", "announced": 100}),
        ("POST", f"{session.url}/artifacts", {"body": b"x", "announced": 9_000_000}),
        ("GET", f"/api/v1/artifacts/{artifact}/content", {"reads": 50}),
    ]
    for method, path, options in calls * 3:
        leave(call(server, api.key, method, path, **options))
    session.append("one more, for those who are no longer there")
    assert wait_until(lambda: is_idle(server), 60)
    assert server.log == ""


def is_idle(server):
    return "agentstate_streams 0.0" in server.get("/metrics").text.splitlines()
