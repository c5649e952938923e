"""Both clients with a key of a fresh project, against the real server."""

import asyncio
import inspect

import pytest
from tests.cutting_proxy import CuttingProxy
from tests.fixtures import issue_key

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
    delegate_to_specialist,
    delegate_to_specialist_async,
)


class Driven:
    """Calls an async object as if it were a blocking one, on an event loop of its own.

    So each test is written once and holds for both clients.
    """

    def __init__(self, subject, runner):
        self._subject = subject
        self._runner = runner

    def __getattr__(self, name):
        found = getattr(self._subject, name)
        if inspect.ismethod(found):
            return lambda *args, **kwargs: self._outcome(found(*args, **kwargs))
        if type(found).__module__.startswith("agentstate_client."):
            return Driven(found, self._runner)
        return found

    def _outcome(self, result):
        if inspect.isasyncgen(result):
            return self._items(result)
        if inspect.isawaitable(result):
            result = self._runner.run(_awaited(result))
        if isinstance(result, AsyncAssignment):
            return Driven(result, self._runner)
        return result

    def _items(self, items):
        try:
            while True:
                try:
                    yield self._runner.run(_awaited(anext(items)))
                except StopAsyncIteration:
                    return
        finally:
            self._runner.run(items.aclose())


async def _awaited(awaitable):
    return await awaitable


class DrivenWorker:
    """An AsyncWorker with the face of a Worker."""

    def __init__(self, worker, runner):
        self._worker = worker
        self._runner = runner
        self.step = worker.step
        self.stop = worker.stop

    def tool(self, name, **options):
        def register(function):
            @self._worker.tool(name, **options)
            async def tool(context):
                # In a thread: what a tool of these tests does may block.
                result = await asyncio.to_thread(function, context)
                return await result if inspect.isawaitable(result) else result

            return function

        return register

    def run(self, **options):
        self._runner.run(self._worker.run(**options))

    def __getattr__(self, name):
        return getattr(self._worker, name)


class FromThread:
    """Calls an async object from another thread than its loop's, and waits."""

    def __init__(self, subject, loop):
        self._subject = subject
        self._loop = loop

    def __getattr__(self, name):
        found = getattr(self._subject, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *args, **kwargs: asyncio.run_coroutine_threadsafe(
            found(*args, **kwargs), self._loop
        ).result()


class Kind:
    """One of the two clients and what stands on it, behind the same blocking face."""

    def __init__(self, name, runner):
        self.name = name
        self._runner = runner
        self._clients = []

    def client(self, base_url, key, **options):
        make = Client if self.name == "sync" else AsyncClient
        client = make(base_url, key, **options)
        self._clients.append(client)
        return self._face(client)

    def store(self, client):
        if self.name == "sync":
            return SessionStore(client)
        return self._face(AsyncSessionStore(client._subject))

    def versioned_state(self, client):
        if self.name == "sync":
            return VersionedSessionState(client)
        return self._face(AsyncVersionedSessionState(client._subject))

    def execution(self, run_id, client, **options):
        if self.name == "sync":
            return ExecutionState(run_id, client, **options)
        return self._face(AsyncExecutionState(run_id, client._subject, **options))

    def working_memory(self, task_id, client):
        if self.name == "sync":
            return WorkingMemory(task_id, client)
        return self._face(AsyncWorkingMemory(task_id, client._subject))

    def handoff(self, client, *args, **options):
        if self.name == "sync":
            return AgentHandoff(*args, client=client, **options)
        made = AsyncAgentHandoff(*args, client=client._subject, **options)
        return self._face(made)

    def assignment(self, ticket, client):
        if self.name == "sync":
            return Assignment(ticket, client)
        return self._face(AsyncAssignment(ticket, client._subject))

    def delegate(self, client, run_id, agent, task, specialist, **options):
        """As delegate_to_specialist; `specialist` gets an assignment that blocks."""
        if self.name == "sync":
            return delegate_to_specialist(
                run_id, agent, task, specialist, client=client, **options
            )

        async def in_a_thread(assignment):
            face = FromThread(assignment, asyncio.get_running_loop())
            return await asyncio.to_thread(specialist, face)

        return self._runner.run(
            delegate_to_specialist_async(
                run_id, agent, task, in_a_thread, client=client._subject, **options
            )
        )

    def worker(self, client, **options):
        """A worker whose tools are plain functions, and whose `run` blocks."""
        if self.name == "sync":
            return Worker(client, **options)
        return DrivenWorker(AsyncWorker(client._subject, **options), self._runner)

    def close(self):
        for client in self._clients:
            if self.name == "sync":
                client.close()
            else:
                self._runner.run(client.aclose())

    def _face(self, made):
        return made if self.name == "sync" else Driven(made, self._runner)


@pytest.fixture(params=["sync", "async"])
def kind(request):
    with asyncio.Runner() as runner:
        kind = Kind(request.param, runner)
        yield kind
        kind.close()


@pytest.fixture
def key(project):
    return issue_key(project)


@pytest.fixture
def client(kind, server, key):
    return kind.client(server.base_url, key)


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
def cut_client(kind, proxy, key):
    """A client that reaches the server through the proxy."""
    return kind.client(proxy.base_url, key)


@pytest.fixture
def rival(server, key):
    """Another client with the same key, always blocking."""
    with Client(server.base_url, key) as client:
        yield client
