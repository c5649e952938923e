"""One call to the server as a value: what to send and how to read the answer.

Nothing here does I/O. `Client` and `AsyncClient` send the same calls.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx

from agentstate_client import codec
from agentstate_client.body import Body
from agentstate_client.errors import AgentStateError
from agentstate_client.models import Page

T = TypeVar("T")
U = TypeVar("U")
Params = Mapping[str, Any]

PAGE_MEMBERS = {"items", "next", "cursor"}
LOCK_TOKEN = "X-Lock-Token"  # the header in which a write shows the session's lock


class Unset(Enum):
    """Tells "not given" from None, where None is a value that can be set."""

    UNSET = "UNSET"


UNSET = Unset.UNSET

# Several calls in a row, written once for both clients: yields each call, is sent its
# result, returns the outcome.
Flow = Generator["Call[Any]", Any, T]


@dataclass(frozen=True)
class Call(Generic[T]):
    method: str
    path: str
    read: Callable[[httpx.Response], T]
    params: Params = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    # Encoded once: a retry must repeat the bytes that its key stands for.
    content: bytes | Body | None = None
    idempotency_key: str | None = None

    def then(self, change: Callable[[T], U]) -> Call[U]:
        """Return this call with `change` applied to its result."""
        read = self.read
        return Call(
            self.method,
            self.path,
            lambda response: change(read(response)),
            self.params,
            self.headers,
            self.content,
            self.idempotency_key,
        )


def reading(
    path: str, read: Callable[[Any], T], params: Params | None = None
) -> Call[T]:
    """A GET, whose answer is JSON."""
    return Call("GET", path, json_reader(read), query(params or {}))


def writing(
    method: str,
    path: str,
    read: Callable[[Any], T],
    body: Any = None,
    *,
    idempotency_key: str | None,
    headers: Mapping[str, str | None] | None = None,
    content_type: str = "application/json",
) -> Call[T]:
    """A call that changes something, under its own idempotency key."""
    key = idempotency_key or str(uuid.uuid4())
    sent = {k: v for k, v in (headers or {}).items() if v is not None}
    sent["Idempotency-Key"] = key
    content = None
    if body is not None:
        sent["Content-Type"] = content_type
        content = codec.encode(body)
    return Call(
        method,
        path,
        json_reader(read),
        headers=sent,
        content=content,
        idempotency_key=key,
    )


def posting(path: str, read: Callable[[Any], T], body: Any) -> Call[T]:
    """A POST that needs no idempotency key: what it says is fenced in itself."""
    return Call(
        "POST",
        path,
        json_reader(read),
        headers={"Content-Type": "application/json"},
        content=codec.encode(body),
    )


def listing(path: str, read: Callable[[Any], T], params: Params) -> Call[Page[T]]:
    """A GET of one page."""

    def read_page(body: dict[str, Any]) -> Page[T]:
        items = [read(item) for item in body["items"]]
        extra = {k: v for k, v in body.items() if k not in PAGE_MEMBERS}
        return Page(items, body.get("next"), body.get("cursor"), extra)

    return reading(path, read_page, params)


def page_after(call: Call[Page[T]], page: Page[T]) -> Call[Page[T]] | None:
    if page.next is None:
        return None
    return replace(call, params={**call.params, "cursor": page.next})


def ask(call: Call[T]) -> Flow[T]:
    """`yield call` with its type: `session = yield from ask(get_session(id))`."""
    result: T = yield call
    return result


def json_reader(read: Callable[[Any], T]) -> Callable[[httpx.Response], T]:
    def read_response(response: httpx.Response) -> T:
        try:
            body = codec.decode(response.content) if response.content else None
        except ValueError as exc:
            raise AgentStateError(
                f"{response.request.url} answered with something that is not JSON: "
                "is this an AgentState server?",
                status=response.status_code,
                code="not_json",
            ) from exc
        return read(body)

    return read_response


def nothing(_: object) -> None:
    return None


def path_to(*parts: str) -> str:
    """Return the URL path; an id that would lead elsewhere is a ValueError."""
    for part in parts:
        if part in ("", ".", ".."):
            raise ValueError(f"{part!r} is not an id")
    return "/api/v1/" + "/".join(quote(part, safe="") for part in parts)


def query(params: Params) -> dict[str, Any]:
    """Leave out what is None. A list becomes a parameter that is repeated."""
    return {name: value for name, value in params.items() if value is not None}


def joined(names: Iterable[str] | None) -> str | None:
    """Return the names as the API takes several in one parameter."""
    if isinstance(names, str):
        return names
    return None if names is None else ",".join(names)


def filled(**members: Any) -> dict[str, Any]:
    """Return the members that are not None."""
    return {name: value for name, value in members.items() if value is not None}


def is_id(text: str) -> bool:
    """Whether a name is an id of the server's, not a key of the client's own."""
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
