"""Turns the functions that make calls into the methods that send them.

`create = blocking(sessions.create)` gives a resource of `Client` a method with the
function's parameters, types and docstring. So each call is written once, and neither
client can offer what the other does not.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from agentstate_client.call import Call
from agentstate_client.download import Fetch
from agentstate_client.models import Page
from agentstate_client.streams import StreamCall

if TYPE_CHECKING:
    from agentstate_client.async_client import AsyncClient
    from agentstate_client.client import Client

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Resource:
    """A group of calls on one client: `client.sessions`."""

    def __init__(self, client: Client) -> None:
        self._client = client


class AsyncResource:
    """As Resource, on an AsyncClient."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client


def blocking(
    make: Callable[P, Call[T]],
) -> Callable[Concatenate[Resource, P], T]:
    def method(self: Resource, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._client.send(make(*args, **kwargs))

    return _dressed(method, make)


def blocking_pages(
    make: Callable[P, Call[Page[T]]],
) -> Callable[Concatenate[Resource, P], Generator[T, None, None]]:
    def method(
        self: Resource, /, *args: P.args, **kwargs: P.kwargs
    ) -> Generator[T, None, None]:
        return self._client.items(make(*args, **kwargs))

    return _dressed(method, make)


def blocking_stream(
    make: Callable[P, StreamCall[T]],
) -> Callable[Concatenate[Resource, P], Generator[T, None, None]]:
    def method(
        self: Resource, /, *args: P.args, **kwargs: P.kwargs
    ) -> Generator[T, None, None]:
        return self._client.follow(make(*args, **kwargs))

    return _dressed(method, make)


def blocking_fetch(
    make: Callable[P, Fetch],
) -> Callable[Concatenate[Resource, P], int]:
    def method(self: Resource, /, *args: P.args, **kwargs: P.kwargs) -> int:
        return self._client.fetch(make(*args, **kwargs))

    return _dressed(method, make)


def awaitable_fetch(
    make: Callable[P, Fetch],
) -> Callable[Concatenate[AsyncResource, P], Awaitable[int]]:
    async def method(self: AsyncResource, /, *args: P.args, **kwargs: P.kwargs) -> int:
        return await self._client.fetch(make(*args, **kwargs))

    return _dressed(method, make)


def awaitable(
    make: Callable[P, Call[T]],
) -> Callable[Concatenate[AsyncResource, P], Awaitable[T]]:
    async def method(self: AsyncResource, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._client.send(make(*args, **kwargs))

    return _dressed(method, make)


def async_pages(
    make: Callable[P, Call[Page[T]]],
) -> Callable[Concatenate[AsyncResource, P], AsyncGenerator[T, None]]:
    def method(
        self: AsyncResource, /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[T, None]:
        return self._client.items(make(*args, **kwargs))

    return _dressed(method, make)


def async_stream(
    make: Callable[P, StreamCall[T]],
) -> Callable[Concatenate[AsyncResource, P], AsyncGenerator[T, None]]:
    def method(
        self: AsyncResource, /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[T, None]:
        return self._client.follow(make(*args, **kwargs))

    return _dressed(method, make)


def _dressed(method: F, make: Callable[..., Any]) -> F:
    """Give `method` the name, docstring and, behind `self`, parameters of `make`."""
    functools.update_wrapper(method, make)
    made = inspect.signature(make)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    signature = made.replace(parameters=[own, *made.parameters.values()])
    method.__signature__ = signature  # type: ignore[attr-defined]
    return method
