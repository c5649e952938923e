"""Fixtures of every test: a project, clients over its API, a clock, real servers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_client
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from django.test import Client

from tests import services
from tests.server import Server

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def database(django_db_blocker: Any) -> Iterator[None]:
    """Migrate this process's database and let every test commit to it."""
    settings.STATIC_ROOT.mkdir(exist_ok=True)
    with django_db_blocker.unblock():
        call_command("migrate", verbosity=0, interactive=False)
        connection.close()
        connection.close_pool()  # what is copied may not be in use
        services.keep_schema()
        yield


@pytest.fixture(autouse=True)
def connection_returned() -> Iterator[None]:
    """A test that broke its connection leaves none of that to the next."""
    yield
    if not connection.in_atomic_block:
        connection.close()


class Api:
    """Django's test client with a key and JSON both ways, in this process."""

    def __init__(self, key: str | None = None) -> None:
        self.key = key
        self.client = Client(raise_request_exception=False)

    def get(self, path: str, **options: Any) -> "Answer":
        if path.startswith("/api/v1/events"):
            wait_until_settled()
        return self.request("GET", path, **options)

    def post(self, path: str, json: Any = None, **options: Any) -> "Answer":
        return self.request("POST", path, json=json, **options)

    def put(self, path: str, json: Any = None, **options: Any) -> "Answer":
        return self.request("PUT", path, json=json, **options)

    def patch(self, path: str, json: Any = None, **options: Any) -> "Answer":
        return self.request("PATCH", path, json=json, **options)

    def delete(self, path: str, **options: Any) -> "Answer":
        return self.request("DELETE", path, **options)

    def request(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        data: bytes | None = None,
        headers: dict[str, str] | None = None,
        params: dict[str, Any] | None = None,
        content_type: str = "application/json",
    ) -> "Answer":
        """`json` goes through our codec; `data` is sent byte for byte instead."""
        from agentstate import codec

        body = data if data is not None else b""
        if json is not None:
            body = codec.dumps(json).encode()
        sent = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        response = self.client.generic(
            method,
            path,
            body,
            content_type=content_type,
            headers=sent | (headers or {}),
            query_params=params,
        )
        return Answer(response)


class Answer:
    """A response: `.status_code`, `.headers`, `.content`, and `.json` by our codec."""

    def __init__(self, response: Any) -> None:
        self.status_code: int = response.status_code
        self.headers = response.headers
        self.content: bytes = response.getvalue()

    @property
    def json(self) -> Any:
        from agentstate import codec

        return codec.loads(self.content, max_depth=1000)

    def __repr__(self) -> str:
        return f"<{self.status_code} {self.content[:500]!r}>"


@pytest.fixture
def project() -> Any:
    return make_project()


@pytest.fixture
def other_project() -> Any:
    return make_project()


def wait_until_settled() -> None:
    """Wait until the feed shows all that has been committed.

    A transaction that is open anywhere in the cluster, of another test process too,
    holds it back for a moment.
    """
    from agentstate.processes import wait_until
    from sessions_app.feed import SETTLED
    from sessions_app.models import Event

    unsettled = Event.objects.extra(where=[f"NOT ({SETTLED})"])
    wait_until(lambda: not unsettled.exists(), 60)


def make_project() -> Any:
    from access_app.services import create_project
    from agentstate.ids import new_id

    return create_project(f"test-{new_id()}")


def issue_key(project: Any, scopes: Any = ("all",), **options: Any) -> str:
    """Make a key and return its secret text."""
    from access_app.services import create_key

    return create_key(project, scopes=scopes, **options)[1]


@pytest.fixture
def make_key(project: Any) -> Callable[..., str]:
    """make_key(scopes=["sessions:read"], **options) -> the key's text."""

    def make(scopes: Any = ("all",), **options: Any) -> str:
        return issue_key(options.pop("project", project), scopes, **options)

    return make


@pytest.fixture
def api(project: Any) -> Api:
    return Api(issue_key(project))


@pytest.fixture
def other_api(other_project: Any) -> Api:
    return Api(issue_key(other_project))


@pytest.fixture
def anonymous() -> Api:
    return Api()


class Clock:
    """Moves the database's clock, the only one that decides anything."""

    def __init__(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_get_functiondef('agentstate_now()'::regprocedure)"
            )
            self.original: str = cursor.fetchone()[0]
        self.seconds = 0.0

    def advance(self, *, seconds: float) -> None:
        self.seconds += seconds
        with connection.cursor() as cursor:
            cursor.execute(
                "CREATE OR REPLACE FUNCTION agentstate_now() RETURNS timestamptz"
                " LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp()"
                f" + make_interval(secs => {float(self.seconds)})'"
            )

    def reset(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(self.original)


@pytest.fixture
def clock() -> Iterator[Clock]:
    """clock.advance(seconds=…); the true time is back after the test."""
    moved = Clock()
    yield moved
    moved.reset()


@pytest.fixture
def redis() -> Iterator["redis_client.Redis"]:
    client = redis_client.Redis.from_url(settings.REDIS_URL)
    yield client
    client.close()


@pytest.fixture(scope="session")
def server(
    database: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A real server process over this process's database; see `.base_url`."""
    running = Server(tmp_path_factory.mktemp("server"))
    running.start()
    yield running
    running.stop()


@pytest.fixture
def server_factory(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """server_factory(**env) starts a server of your own; `.kill()` is SIGKILL."""
    servers: list[Server] = []

    def make(**environment: str) -> Server:
        servers.append(Server(tmp_path, **environment))
        servers[-1].start()
        return servers[-1]

    yield make
    for each in servers:
        each.kill()


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The evaluation data beside the project, where there is some."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("the evaluation data (../shared) is not here")
    return folder
