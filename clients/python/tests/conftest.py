"""Clients with a key of a fresh project, against the real server."""

import pytest
from tests.cutting_proxy import CuttingProxy
from tests.fixtures import issue_key

from agentstate_client import AsyncClient, Client


@pytest.fixture
def key(project):
    return issue_key(project)


@pytest.fixture
def client(server, key):
    with Client(server.base_url, key) as client:
        yield client


@pytest.fixture
def async_client(server, key):
    """Not opened here: it belongs to the event loop of the test that uses it."""
    return AsyncClient(server.base_url, key)


@pytest.fixture
def session(client):
    return client.sessions.create(agent="support")


@pytest.fixture
def proxy(server):
    """A proxy before the server; tell it which answers to lose, where to cut."""
    proxy = CuttingProxy(server.base_url)
    yield proxy
    proxy.close()


@pytest.fixture
def cut_client(proxy, key):
    """A client that reaches the server through the proxy."""
    with Client(proxy.base_url, key) as client:
        yield client
