"""The application as it is served: a real process, raw sockets where it matters."""

import socket

import httpx


def test_a_request_is_answered_over_the_bridge(server):
    answer = httpx.get(f"{server.base_url}/healthz")
    assert answer.json() == {"status": "ok"}


def read_all(raw: socket.socket) -> bytes:
    return b"".join(iter(lambda: raw.recv(65536), b""))


def test_a_body_over_the_limit_gets_413_before_it_is_read(server):
    with socket.create_connection(("127.0.0.1", server.port), 5) as raw:
        raw.sendall(
            b"POST /api/v1/sessions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n{"
        )
        answer = read_all(raw)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"application/problem+json" in answer
    assert b"body_too_large" in answer
