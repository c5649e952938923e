"""Working memory of a session or a run: keys that expire."""

from __future__ import annotations

from typing import Any, Literal
from urllib.parse import quote

from agentstate_client.call import (
    Call,
    filled,
    listing,
    nothing,
    path_to,
    reading,
    writing,
)
from agentstate_client.models import MemoryEntry, Page

Kind = Literal["session", "run"]
Policy = Literal["fixed", "sliding"]


def get(kind: Kind, id: str, key: str) -> Call[MemoryEntry]:
    """Return one key. Raises EntryExpired or NotFound if it is not there."""
    return reading(_path(kind, id, key), MemoryEntry.from_json)


def list_page(
    kind: Kind, id: str, *, limit: int | None = None, cursor: str | None = None
) -> Call[Page[MemoryEntry]]:
    """Return one page of the keys, in order; those that expired lately say so."""
    return listing(
        _path(kind, id), MemoryEntry.from_json, {"limit": limit, "cursor": cursor}
    )


def put(
    kind: Kind,
    id: str,
    key: str,
    value: Any,
    *,
    ttl: int | None = None,
    policy: Policy | None = None,
    expected_version: int | None = None,
    only_new: bool = False,
    idempotency_key: str | None = None,
) -> Call[MemoryEntry]:
    """Set one key for `ttl` seconds (an hour if not given).

    With `expected_version` only if it still has that version, with `only_new` only if
    there is no such key: else ConcurrentModificationError or EntryExists.
    """
    return writing(
        "PUT",
        _path(kind, id, key),
        MemoryEntry.from_json,
        {"value": value, **filled(ttl_s=ttl, policy=policy)},
        idempotency_key=idempotency_key,
        headers={
            **_if_match(expected_version),
            "If-None-Match": "*" if only_new else None,
        },
    )


def increment(
    kind: Kind,
    id: str,
    key: str,
    by: int = 1,
    *,
    ttl: int | None = None,
    policy: Policy | None = None,
    idempotency_key: str | None = None,
) -> Call[MemoryEntry]:
    """Add to a counter; a new one begins at 0 and lives for `ttl` seconds."""
    return writing(
        "POST",
        _path(kind, id, key) + "/increment",
        MemoryEntry.from_json,
        {"by": by, **filled(ttl_s=ttl, policy=policy)},
        idempotency_key=idempotency_key,
    )


def append(
    kind: Kind,
    id: str,
    key: str,
    item: Any,
    *,
    ttl: int | None = None,
    policy: Policy | None = None,
    idempotency_key: str | None = None,
) -> Call[MemoryEntry]:
    """Add an item to a list; a new one begins empty. `length` says how long it is."""
    return writing(
        "POST",
        _path(kind, id, key) + "/append",
        MemoryEntry.from_json,
        {"item": item, **filled(ttl_s=ttl, policy=policy)},
        idempotency_key=idempotency_key,
    )


def touch(
    kind: Kind,
    id: str,
    key: str,
    *,
    ttl: int | None = None,
    idempotency_key: str | None = None,
) -> Call[MemoryEntry]:
    """Begin a key's life anew, with `ttl` seconds or its own."""
    return writing(
        "POST",
        _path(kind, id, key) + "/touch",
        MemoryEntry.from_json,
        filled(ttl_s=ttl),
        idempotency_key=idempotency_key,
    )


def delete(
    kind: Kind,
    id: str,
    key: str,
    *,
    expected_version: int | None = None,
    idempotency_key: str | None = None,
) -> Call[None]:
    """Delete exactly this key."""
    return writing(
        "DELETE",
        _path(kind, id, key),
        nothing,
        idempotency_key=idempotency_key,
        headers=_if_match(expected_version),
    )


def _path(kind: Kind, id: str, key: str | None = None) -> str:
    path = path_to(f"{kind}s", id, "working-memory")
    if key is None:
        return path
    # Dots alone would be taken for steps in the path.
    plain = quote(key, safe="")
    return f"{path}/{plain if plain.strip('.') else plain.replace('.', '%2E')}"


def _if_match(version: int | None) -> dict[str, str | None]:
    return {"If-Match": None if version is None else f'"{version}"'}
