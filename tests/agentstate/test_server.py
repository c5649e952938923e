"""The application as it is served: a real process, raw sockets where it matters."""

import json
import signal
import socket

import httpx

from tests.fixtures import issue_key
from tests.server import PATIENCE


def exchange(server, request: bytes, *, hang_up: bool = False) -> bytes:
    """Send bytes; return all that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as raw:
        raw.sendall(request)
        if hang_up:
            raw.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: raw.recv(65536), b""))


def post_session(key: str, body: bytes, *headers: str) -> bytes:
    lines = [
        "POST /api/v1/sessions HTTP/1.1",
        "Host: localhost",
        "Connection: close",
        f"Authorization: Bearer {key}",
        "Content-Type: application/json",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def test_a_request_is_answered_over_the_bridge(server):
    answer = server.get("/healthz")
    assert answer.json() == {"status": "ok"}
    assert answer.headers["x-request-id"]


def test_a_body_over_the_limit_gets_413_before_it_is_read(server):
    request = post_session("none", b"{", "Content-Length: 99999999999")
    answer = exchange(server, request)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"application/problem+json" in answer
    assert b"body_too_large" in answer


def test_a_body_cut_short_makes_nothing(server, project, api):
    # What arrived is JSON by itself: only its length tells that more was meant.
    whole = json.dumps({"agent": "cut", "key": "cut"}).encode()
    request = post_session(
        issue_key(project), whole, f"Content-Length: {len(whole) + 5}"
    )
    exchange(server, request, hang_up=True)
    assert server.get("/healthz").status_code == 200
    assert api.get("/api/v1/sessions", params={"agent": "cut"}).json["items"] == []


def test_a_chunked_body_is_taken(server, project):
    part = json.dumps({"agent": "chunked"}).encode()
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(part), part)
    request = post_session(issue_key(project), chunked, "Transfer-Encoding: chunked")
    assert exchange(server, request).startswith(b"HTTP/1.1 201")


def test_a_path_that_is_not_utf_8_is_not_found(server):
    answer = server.get("/api/v1/%ff%fe")
    assert answer.status_code in (400, 404)


def test_a_stream_has_no_head(server, project, api):
    session = api.post("/api/v1/sessions", {}).json["id"]
    for path in ("events/stream", f"sessions/{session}/events/stream"):
        answer = httpx.head(
            f"{server.base_url}/api/v1/{path}",
            headers={"X-API-Key": issue_key(project)},
            timeout=PATIENCE,
        )
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


def test_a_websocket_is_refused_cleanly(server):
    request = (
        b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    assert exchange(server, request).startswith(b"HTTP/1.1 403")
    assert server.get("/healthz").status_code == 200


def test_a_stream_does_not_hold_up_a_stop(server_factory, project):
    server = server_factory()
    key = issue_key(project)
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.stream(
        "GET",
        f"{server.base_url}/api/v1/events/stream",
        headers=headers,
        timeout=PATIENCE,
    ) as stream:
        assert stream.status_code == 200
        lines = stream.iter_lines()
        next(lines)
        server.process.terminate()
        for _ in lines:  # it ends, rather than breaks
            pass
    assert server.process.wait(PATIENCE) in (0, -signal.SIGTERM)


def test_pages_answer_without_the_database(server_factory):
    server = server_factory(DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")
    assert server.get("/healthz").status_code == 200
    answer = server.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["checks"]["postgres"] == "unreachable"
