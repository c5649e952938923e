"""What the fault tests share: a client, and services downstream that count."""

from collections.abc import Iterator

import pytest
from agentstate_client import Client

from examples.downstream import Downstream
from tests.fixtures import issue_key


@pytest.fixture
def downstream() -> Iterator[Downstream]:
    """A service that honours idempotency keys."""
    service = Downstream().start()
    yield service
    service.stop()


@pytest.fixture
def careless() -> Iterator[Downstream]:
    """A service that pays each time it is asked."""
    service = Downstream(honours_keys=False).start()
    yield service
    service.stop()


@pytest.fixture
def key(project):
    return issue_key(project)


@pytest.fixture
def client(server, key) -> Iterator[Client]:
    with Client(server.base_url, key) as client:
        yield client
