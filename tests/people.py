"""Sockets and people: a client of the socket's protocol, and signed-in users."""

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from websockets.sync.client import ClientConnection, connect

from agentstate.ids import new_id

SECONDS = 60  # a test fails after waiting this long for a message


class Socket:
    """A websocket that has said hello; `next()` is the next message that matters."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    def send(self, **message: Any) -> None:
        self.connection.send(json.dumps(message))

    def next(self, type: str | None = None) -> dict[str, Any]:
        while True:
            message = json.loads(self.connection.recv(timeout=SECONDS))
            if message["type"] == "still_here":
                continue
            assert type in (None, message["type"]), message
            return message

    def seqs(self, upto: int) -> list[int]:
        """The seqs pushed, until `upto` has come."""
        seqs: list[int] = []
        while not seqs or seqs[-1] < upto:
            seqs += [event["seq"] for event in self.next("events")["events"]]
        return seqs

    def close_code(self) -> int:
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):
            while True:
                self.connection.recv(timeout=SECONDS)
        return self.connection.close_code or 0


@pytest.fixture
def dial(server: Any) -> Iterator[Callable[..., ClientConnection]]:
    """dial(origin=…, headers=…, path=…) opens a bare connection to the server."""
    with contextlib.ExitStack() as opened:

        def open_one(path: str = "/ws/", **options: Any) -> ClientConnection:
            headers = options.pop("headers", {})
            address = options.pop("server", server).base_url.replace("http", "ws", 1)
            options.setdefault("open_timeout", SECONDS)
            made = connect(
                address + path, additional_headers=headers, max_size=None, **options
            )
            return opened.enter_context(made)

        yield open_one


@pytest.fixture
def listen(
    dial: Callable[..., ClientConnection], make_key: Any
) -> Callable[..., Socket]:
    """listen() is a socket that has said hello with a key of the project."""

    def begin(**options: Any) -> Socket:
        key = options.pop("key", None) or make_key()
        socket = Socket(dial(**options))
        socket.send(action="hello", key=key)
        socket.next("welcome")
        return socket

    return begin


@pytest.fixture
def make_user() -> Callable[..., Any]:
    """make_user(project, role) makes an account and, with a role, a member."""

    def make(project: Any = None, role: str | None = None, **fields: Any) -> Any:
        from django.contrib.auth.models import User

        from access_app.services import add_member

        user = User.objects.create_user(f"u-{new_id()}", **fields)
        if role:
            add_member(project.id, user, role)
        return user

    return make


@pytest.fixture
def browse(make_user: Any, project: Any) -> Callable[..., Client]:
    """browse(role) is Django's client signed in as a member of the project."""

    def sign_in(role: str = "owner", **options: Any) -> Client:
        client = Client()
        client.force_login(make_user(options.get("project", project), role))
        return client

    return sign_in


def cookie_of(client: Client) -> dict[str, str]:
    name = settings.SESSION_COOKIE_NAME
    return {"Cookie": f"{name}={client.cookies[name].value}"}


def make_session(api: Any, **fields: Any) -> str:
    session_id: str = api.post("/api/v1/sessions", fields or {}).json["id"]
    return session_id


def append(api: Any, session_id: str, count: int, **payload: Any) -> None:
    event = {"type": "message.user", "payload": {"content": "hello"} | payload}
    answer = api.post(
        f"/api/v1/sessions/{session_id}/events", {"events": [event] * count}
    )
    assert answer.status_code == 201, answer
