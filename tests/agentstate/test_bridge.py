"""The bridge from ASGI to WSGI, message by message."""

import asyncio
import json
import threading

import pytest

from agentstate import bridge
from agentstate.bridge import WSGIBridge

LIMIT = 1000


class App:
    """A WSGI application that keeps what it was called with."""

    def __init__(self, parts=(b"done",)):
        self.parts = parts
        self.calls = []
        self.closed = threading.Event()

    def __call__(self, environ, start_response):
        self.calls.append((environ, environ["wsgi.input"].read()))
        start_response("200 OK", [("Content-Type", "text/plain")])
        return Parts(self)


class Parts:
    def __init__(self, app):
        self.app = app

    def __iter__(self):
        return iter(self.app.parts)

    def close(self):
        self.app.closed.set()


def scope(method="POST", headers=(), **more):
    return {
        "type": "http",
        "method": method,
        "path": "/x",
        "raw_path": b"/x",
        "query_string": b"",
        "http_version": "1.1",
        "headers": list(headers),
        **more,
    }


def body(data=b"", more=False):
    return {"type": "http.request", "body": data, "more_body": more}


def exchange(app, scope, messages, *, threads=1):
    """Run one request; return what was sent and what was not received."""
    left, sent = list(messages), []

    async def receive():
        return left.pop(0) if left else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    async def run():
        served = WSGIBridge(app, threads=threads, max_body_bytes=LIMIT)
        await asyncio.wait_for(served(scope, receive, send), 10)

    asyncio.run(run())
    return sent, left


def status_of(sent):
    return sent[0]["status"]


def body_of(sent):
    return b"".join(message.get("body", b"") for message in sent[1:])


def test_a_body_in_parts_arrives_whole():
    app = App()
    sent, _ = exchange(app, scope(), [body(b"one ", True), body(b"two")])
    [(environ, received)] = app.calls
    assert received == b"one two"
    assert environ["CONTENT_LENGTH"] == "7"
    assert (status_of(sent), body_of(sent)) == (200, b"done")


def test_a_body_announced_too_large_is_refused_unread(monkeypatch):
    monkeypatch.setattr(bridge, "DRAIN_SECONDS", 0.01)
    app = App()
    length = [(b"content-length", str(LIMIT + 1).encode())]
    sent, left = exchange(app, scope(headers=length), [])
    assert (status_of(sent), app.calls, left) == (413, [], [])
    problem = json.loads(body_of(sent))
    assert (problem["code"], problem["limit_bytes"]) == ("body_too_large", LIMIT)
    assert (b"connection", b"close") in sent[0]["headers"]


def test_a_body_that_grows_too_large_is_refused():
    app = App()
    part = body(b"x" * 600, True)
    sent, left = exchange(app, scope(), [part, part, *[part] * 50])
    assert (status_of(sent), app.calls) == (413, [])
    assert len(left) > 40  # it gave up soon


def test_a_client_that_hangs_up_never_reaches_the_application():
    app = App()
    messages = [body(b'{"a": 1', True), {"type": "http.disconnect"}]
    sent, _ = exchange(app, scope(), messages)
    assert (status_of(sent), app.calls) == (400, [])


def test_fewer_bytes_than_announced_never_reach_the_application():
    app = App()
    sent, _ = exchange(app, scope(headers=[(b"content-length", b"9")]), [body(b"12")])
    assert (status_of(sent), app.calls) == (400, [])
    assert json.loads(body_of(sent))["code"] == "incomplete_body"


def test_the_answer_is_closed_before_it_is_sent():
    app = App()
    closed = []

    async def run():
        async def receive():
            return body()

        async def send(message):
            closed.append(app.closed.is_set())

        await WSGIBridge(app, threads=1, max_body_bytes=LIMIT)(scope(), receive, send)

    asyncio.run(run())
    assert closed == [True, True]


def test_a_large_answer_is_sent_in_parts():
    part = b"x" * 100_000
    sent, _ = exchange(App([part] * 10), scope("GET"), [body()])
    assert body_of(sent) == part * 10
    assert len(sent) > 4
    assert [m.get("more_body", False) for m in sent[1:]][-1] is False


def test_an_answer_to_head_has_no_body():
    sent, _ = exchange(App(), scope("HEAD"), [body()])
    assert body_of(sent) == b""


def test_headers_become_environ():
    app = App()
    headers = [
        (b"x-forwarded-for", b"a"),
        (b"x-forwarded-for", b"b"),
        (b"x_forwarded_for", b"forged"),
        (b"cookie", b"c=1"),
        (b"cookie", b"d=2"),
        (b"content-type", b"application/json"),
        (b"transfer-encoding", b"chunked"),
    ]
    exchange(app, scope(headers=headers), [body(b"{}")])
    [(environ, _)] = app.calls
    assert environ["HTTP_X_FORWARDED_FOR"] == "a,b"
    assert environ["HTTP_COOKIE"] == "c=1; d=2"
    assert environ["CONTENT_TYPE"] == "application/json"
    assert "HTTP_TRANSFER_ENCODING" not in environ
    assert "HTTP_CONTENT_TYPE" not in environ


@pytest.mark.parametrize(
    ("raw", "expected"),
    [(b"/a%20b", "/a b"), (b"/%C3%A9", "/\u00c3\u00a9"), (b"/%ff", "/\u00ff")],
)
def test_the_path_is_bytes_as_latin_1(raw, expected):
    app = App()
    exchange(app, scope(raw_path=raw), [body()])
    assert app.calls[0][0]["PATH_INFO"] == expected


def test_more_than_can_be_served_is_refused_at_once(monkeypatch):
    monkeypatch.setattr(bridge, "WAITING_PER_THREAD", 1)
    hold, statuses = threading.Event(), []

    def app(environ, start_response):
        hold.wait(10)
        start_response("200 OK", [])
        return [b""]

    async def run():
        served = WSGIBridge(app, threads=1, max_body_bytes=LIMIT)

        async def receive():
            return body()

        async def send(message):
            if "status" in message:
                statuses.append(message["status"])
                hold.set()

        await asyncio.gather(*(served(scope(), receive, send) for _ in range(5)))

    asyncio.run(run())
    assert sorted(statuses) == [200, 200, 503, 503, 503]
