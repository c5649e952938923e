"""Every write can be retried: the first answer is given again, for a day.

A key belongs to one project, caller, method and path. Its call, its effect and the
record of its answer are one transaction, so a crash leaves either all or nothing, and
the lock that says "in progress" goes with the transaction: nothing can get stuck. Only
successes are kept: a refused call changed nothing and may be tried again.

`access_begin_idempotent` and `access_store_answer` in the database do the work, each in
one round trip; an app may call them inside an SQL function of its own.
"""

import hashlib
import re
from dataclasses import dataclass
from uuid import UUID

from django.conf import settings
from django.db import connection
from rest_framework.request import Request

from access_app.callers import Caller
from access_app.errors import (
    BadIdempotencyKey,
    IdempotencyInProgress,
    IdempotencyKeyReused,
)
from access_app.models import IdempotencyRecord, Project
from agentstate import codec
from agentstate.api.parsers import read_body

HEADER, META_NAME = "Idempotency-Key", "HTTP_IDEMPOTENCY_KEY"
REPLAYED = "Idempotency-Replayed"
KEY = re.compile(r"[\x20-\x7e]{1,255}\Z")

# What access_begin_idempotent answers.
RUN, REPLAY, BUSY, REUSED = "run", "replay", "busy", "reused"


@dataclass(frozen=True, slots=True)
class IdempotencyRequest:
    """An Idempotency-Key and what it stands for."""

    key: str
    project_id: UUID
    caller_key_id: UUID
    scope_hash: bytes  # of method, path and key
    fingerprint: bytes  # of media type, query and body
    lock_number: int  # for pg_try_advisory_xact_lock


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call was answered, as it is kept. `body` is JSON text, or empty."""

    status: int
    headers: dict[str, str]
    body: str


def read_idempotency(
    request: Request, caller: Caller, body: bytes | None = None
) -> IdempotencyRequest | None:
    """Return the call's key with its hashes; None without one. BadIdempotencyKey.

    `body` stands for the body where that is too large to be read here.
    """
    key = request.META.get(META_NAME)
    if key is None:
        return None
    if not KEY.match(key):
        raise BadIdempotencyKey
    scope_hash = _sha256(request.method or "", request.path, key)
    owner = caller.project_id.bytes + caller.key_id.bytes
    lock = hashlib.sha256(owner + scope_hash).digest()[:8]
    return IdempotencyRequest(
        key=key,
        project_id=caller.project_id,
        caller_key_id=caller.key_id,
        scope_hash=scope_hash,
        fingerprint=_fingerprint(request, body),
        lock_number=int.from_bytes(lock, signed=True),
    )


def begin(call: IdempotencyRequest) -> Answer | None:
    """Return the answer this call has had; None if it is to run now.

    In a transaction, which holds the call's lock until it ends. Raises
    IdempotencyInProgress or IdempotencyKeyReused.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT outcome, status, headers::text, body"
            " FROM access_begin_idempotent(%s, %s, %s, %s, %s)",
            [
                call.project_id,
                call.caller_key_id,
                call.scope_hash,
                call.fingerprint,
                call.lock_number,
            ],
        )
        outcome, status, headers, body = cursor.fetchone()
    return read_outcome(outcome, status, headers, body)


def read_outcome(
    outcome: str, status: int | None, headers: str | None, body: str | None
) -> Answer | None:
    """Return the stored answer, or None for RUN; raises what BUSY and REUSED mean."""
    if outcome == BUSY:
        raise IdempotencyInProgress
    if outcome == REUSED:
        raise IdempotencyKeyReused
    if outcome == RUN:
        return None
    assert status is not None and headers is not None and body is not None
    stored = codec.loads(headers)
    assert isinstance(stored, dict)
    return Answer(status, {k: str(v) for k, v in stored.items()}, body)


def store_answer(
    call: IdempotencyRequest, answer: Answer, session_id: UUID | None = None
) -> None:
    """Keep the answer, in the transaction of the effect.

    `session_id` is the session whose content the answer may repeat.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT access_store_answer(%s, %s, %s, %s, %s, %s::smallint, %s, %s, %s)",
            [
                call.project_id,
                call.caller_key_id,
                call.scope_hash,
                call.fingerprint,
                session_id,
                answer.status,
                codec.dumps(answer.headers),
                answer.body,
                settings.IDEMPOTENCY_HOURS,
            ],
        )


def forget_answers(project_id: UUID, session_id: UUID) -> int:
    """Drop the answers that may repeat what a session holds; how many there were."""
    records = IdempotencyRecord.objects.filter(
        project_id=project_id, session_id=session_id
    )
    deleted, _ = records.delete()
    return deleted


def delete_expired_idempotency(limit: int = 10_000) -> int:
    """Delete at most `limit` expired answers and return how many were deleted."""
    deleted = 0
    # Project by project: that is how the index is ordered.
    for project_id in Project.objects.values_list("id", flat=True):
        if deleted >= limit:
            break
        deleted += _delete_expired_of(project_id, limit - deleted)
    return deleted


def _delete_expired_of(project_id: UUID, limit: int) -> int:
    with connection.cursor() as cursor:
        # SKIP LOCKED: a call that replaces its expired answer is not to be waited for.
        cursor.execute(
            "DELETE FROM access_idempotency WHERE ctid = ANY(ARRAY("
            " SELECT ctid FROM access_idempotency"
            " WHERE project_id = %s AND expires_at <= agentstate_now()"
            " ORDER BY expires_at LIMIT %s FOR UPDATE SKIP LOCKED))",
            [project_id, limit],
        )
        return int(cursor.rowcount)


def _fingerprint(request: Request, body: bytes | None) -> bytes:
    media_type = (request.content_type or "").partition(";")[0].strip().lower()
    query = request.META.get("QUERY_STRING", "")
    return _sha256(media_type, query, read_body(request) if body is None else body)


def _sha256(*parts: str | bytes) -> bytes:
    """Hash parts so that no two lists of parts run together to the same bytes."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8))
        digest.update(raw)
    return digest.digest()
