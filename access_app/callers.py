"""Who is calling: from the text of a key to a Caller, which the whole API works with.

A key that has been checked is remembered for less than a second in each process. So a
busy key costs one read a second, and a revocation holds everywhere within a second
without any message between processes.
"""

import hashlib
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from django.conf import settings
from django.core.signals import request_finished
from django.db import DatabaseError, close_old_connections

from access_app import scopes as scope_names
from access_app.errors import MissingScope, ToolNotAllowed, Unauthenticated
from access_app.keys import KeyText, is_secret, parse_key_text
from access_app.models import ApiKey
from access_app.services import touch_keys
from agentstate.errors import NotFound

logger = logging.getLogger(__name__)

CACHE_SECONDS = 0.9  # with the read itself, less than the second that is promised
CACHE_ENTRIES = 10_000
TOUCH_SECONDS = 60.0


class HasSubject(Protocol):
    """What a binding is checked against: a session, or anything shaped like one."""

    id: UUID
    subject: str | None


@dataclass(frozen=True, slots=True)
class Caller:
    """The key behind a request, and what it may reach."""

    key_id: UUID
    project_id: UUID
    scopes: frozenset[str]
    subject: str | None
    session_id: UUID | None
    actor: str
    rate_limit_per_minute: int
    run_id: UUID | None = None
    tool_allowlist: frozenset[str] | None = None

    @property
    def is_bound(self) -> bool:
        return self.subject is not None or self.session_id is not None

    def has_scope(self, name: str) -> bool:
        """A bound key never administers: its project is more than it may see."""
        if name == scope_names.ADMIN and self.is_bound:
            return False
        return name in self.scopes or scope_names.ALL in self.scopes

    def require_scope(self, name: str) -> None:
        if not self.has_scope(name):
            raise MissingScope(name)

    def check_makes_runs(self) -> None:
        """Raise MissingScope for a key of one run: its limits are not to be escaped."""
        if self.run_id is not None:
            raise MissingScope(
                scope_names.RUNS_WRITE,
                "This key is bound to one run: change its plan, or hand work on.",
            )

    def check_tool(self, name: str, path: str) -> None:
        """Raise ToolNotAllowed for a tool that the key may not call."""
        if self.tool_allowlist is not None and name not in self.tool_allowlist:
            raise ToolNotAllowed(name, path)

    def may_see(self, session_id: UUID, subject: str | None) -> bool:
        """Whether a session of this id and subject is within the key's binding."""
        if self.session_id is not None and session_id != self.session_id:
            return False
        return self.subject is None or subject == self.subject

    def check_session(self, session: HasSubject) -> None:
        """Raise NotFound for a session outside the key's binding."""
        if not self.may_see(session.id, session.subject):
            raise NotFound

    def session_filter(self) -> dict[str, UUID | str]:
        """Return the filter that keeps a Session queryset within reach of the key."""
        reach: dict[str, UUID | str] = {"project_id": self.project_id}
        if self.session_id is not None:
            reach["id"] = self.session_id
        if self.subject is not None:
            reach["subject"] = self.subject
        return reach


@dataclass(slots=True)
class _Known:
    caller: Caller
    until: float  # time.monotonic()


# Keyed by a hash of the whole text: no secret stays in memory longer than its request.
_known: dict[bytes, _Known] = {}
_touched: dict[UUID, float] = {}
_to_touch: deque[UUID] = deque()


def identify(text: str) -> Caller:
    """Return the caller whose key `text` is. Raises Unauthenticated."""
    digest = hashlib.sha256(text.encode()).digest()
    # Read before the row is: what is remembered is at least as old as it looks.
    now = time.monotonic()
    known = _known.get(digest)
    if known is None or known.until < now:
        key_text = parse_key_text(text)
        if key_text is None:
            raise Unauthenticated
        known = _Known(_check(key_text), now + CACHE_SECONDS)
        if len(_known) >= CACHE_ENTRIES:
            _known.clear()
        _known[digest] = known
    _note_use(known.caller.key_id, now)
    return known.caller


def forget_known_keys() -> None:
    """Make this process read every key anew."""
    _known.clear()


def write_uses_after_each_request() -> None:
    request_finished.connect(_write_uses, dispatch_uid="access_app.write_uses")


def _check(key_text: KeyText) -> Caller:
    key = ApiKey.objects.usable().filter(prefix=key_text.prefix).first()
    # A wrong secret, an unknown prefix, a revoked and an expired key are one answer.
    if not is_secret(key_text.secret, bytes(key.secret_hash) if key else None):
        raise Unauthenticated
    assert key is not None
    return caller_of(key)


def caller_of(key: ApiKey) -> Caller:
    limit = key.rate_limit_per_minute
    return Caller(
        key_id=key.id,
        project_id=key.project_id,
        scopes=frozenset(key.scopes),
        subject=key.subject,
        session_id=key.session_id,
        actor=f"key:{key.prefix}",
        rate_limit_per_minute=settings.RATE_LIMIT_PER_MINUTE
        if limit is None
        else limit,
        run_id=key.run_id,
        tool_allowlist=None
        if key.tool_allowlist is None
        else frozenset(key.tool_allowlist),
    )


def _note_use(key_id: UUID, now: float) -> None:
    if now - _touched.get(key_id, -TOUCH_SECONDS) < TOUCH_SECONDS:
        return
    if len(_touched) >= CACHE_ENTRIES:
        _touched.clear()
    _touched[key_id] = now
    _to_touch.append(key_id)


def _write_uses(**signal: object) -> None:
    """Write `last_used_at` once the answer is on its way: nobody waits for it."""
    if not _to_touch:
        return
    key_ids: set[UUID] = set()
    while _to_touch:
        key_ids.add(_to_touch.popleft())
    try:
        touch_keys(key_ids)
    except DatabaseError:
        logger.warning("last use of keys not written", extra={"keys": len(key_ids)})
    finally:
        # Django gave the connection back before this ran; so must we.
        close_old_connections()
