"""What one client can do the other can do, with the same parameters."""

import inspect

import pytest

import agentstate_client
from agentstate_client import (
    AgentHandoff,
    Assignment,
    AsyncAgentHandoff,
    AsyncAssignment,
    AsyncClient,
    AsyncExecutionState,
    AsyncSessionStore,
    AsyncVersionedSessionState,
    AsyncWorker,
    AsyncWorkingMemory,
    Client,
    ExecutionState,
    SessionStore,
    VersionedSessionState,
    Worker,
    WorkingMemory,
)

TICKET = {"handoff": "h", "token": "t"}


def handoff(kind, client):
    return kind("t", None, None, "r", client=client)


@pytest.fixture
def pairs():
    sync, other = Client("http://server", "key"), AsyncClient("http://server", "key")
    resources = [
        (value, getattr(other, name))
        for name, value in vars(sync).items()
        if type(value).__module__ == "agentstate_client.client"
    ]
    assert len(resources) >= 4
    return [
        (sync, other),
        *resources,
        (SessionStore(sync), AsyncSessionStore(other)),
        (VersionedSessionState(sync), AsyncVersionedSessionState(other)),
        (WorkingMemory("t", sync), AsyncWorkingMemory("t", other)),
        (ExecutionState("r", sync), AsyncExecutionState("r", other)),
        (Worker(sync), AsyncWorker(other)),
        (handoff(AgentHandoff, sync), handoff(AsyncAgentHandoff, other)),
        (Assignment(TICKET, sync), AsyncAssignment(TICKET, other)),
    ]


def public_methods(thing):
    return {
        name: method
        for name, method in inspect.getmembers(thing, callable)
        if not name.startswith("_") and inspect.ismethod(method)
    }


def parameters(function):
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, p.default) for p in found]


def twin_of(name, sync):
    # As httpx has it; a session, though, is closed by the same word in both.
    return "aclose" if name == "close" and isinstance(sync, Client) else name


def test_both_clients_have_the_same_methods(pairs):
    for sync, other in pairs:
        names = {twin_of(name, sync) for name in public_methods(sync)}
        assert names == set(public_methods(other))
        assert names


def test_both_clients_take_the_same_parameters(pairs):
    for sync, other in pairs:
        assert parameters(type(sync)) == parameters(type(other))
        for name, method in public_methods(sync).items():
            twin = getattr(other, twin_of(name, sync))
            assert parameters(method) == parameters(twin), name


def test_every_method_says_what_it_does(pairs):
    for pair in pairs:
        for thing in pair:
            for name, method in public_methods(thing).items():
                assert method.__doc__ or name in ("close", "aclose"), (thing, name)


def test_whatever_has_an_async_twin_is_exported():
    for name in (
        "AgentHandoff",
        "Assignment",
        "Client",
        "ExecutionState",
        "SessionStore",
        "VersionedSessionState",
        "Worker",
        "WorkingMemory",
    ):
        assert {name, f"Async{name}"} <= set(agentstate_client.__all__)
    for name in agentstate_client.__all__:
        assert hasattr(agentstate_client, name)


def test_async_methods_are_awaited_and_streams_iterated():
    client = AsyncClient("http://server", "key")
    assert inspect.iscoroutinefunction(client.sessions.create)
    assert inspect.isasyncgen(client.events.stream("s-1"))
    assert inspect.isasyncgen(client.sessions.iterate())
