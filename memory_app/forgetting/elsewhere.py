"""Forgetting outside of logs and facts: stored answers, audit, Redis, other tables."""

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from uuid import UUID, uuid5

import redis
from django.apps import apps
from django.conf import settings
from django.db import connection
from django.db.models import Field, JSONField, Model, TextField
from django.db.models.functions import Cast

from access_app.models import AuditEntry, IdempotencyRecord
from agentstate import codec
from agentstate.fields import ExactJSONField
from memory_app.forgetting.scrub import CONTENT, Needles, blanked

logger = logging.getLogger(__name__)

FORGOTTEN_ANSWER = '{"status":"forgotten"}'
REDIS_PREFIX = "agentstate:"
# As JSON or text, these say nothing: they stay, in the log as in the tables.
EMPTY_VALUES = ["", "null", "{}", "[]"]
# Tables that have their own way, in memory_app.forgetting.log or as memory.
HANDLED = {
    "agent_sessions",
    "agent_events",
    "agent_snapshots",
    "agent_tool_calls",
    "access_idempotency",
    "agent_memory_promotions",
}


def redact_answers(
    project_id: UUID, marks: Iterable[UUID], needles: Needles | None = None
) -> int:
    """Empty the stored answers marked so; with `needles` those that hold one.

    The record stays: a retry of the forgotten call must not do it anew. An append's
    answer holds numbers alone and stays as it is.
    """
    records = IdempotencyRecord.objects.filter(
        project_id=project_id, session_id__in=list(marks)
    ).exclude(body__startswith='{"events" :')
    if needles is None:
        return int(records.update(body=FORGOTTEN_ANSWER))
    changed = 0
    for pk, body in records.values_list("pk", "body"):
        if needles.are_in_json(body):
            changed += IdempotencyRecord.objects.filter(pk=pk).update(
                body=FORGOTTEN_ANSWER
            )
    return changed


def answers_about(project_id: UUID, subject: str) -> UUID:
    """Return the mark of stored answers that repeat what is known about a subject."""
    return uuid5(project_id, f"memory:{subject}")


def answers_about_several(project_id: UUID) -> UUID:
    """Return the mark of stored answers about more than one subject."""
    return uuid5(project_id, "memory of several")


def subjects_in(answer: Any) -> set[str]:
    """Return whom an answer about a fact, or a list of facts, is about."""
    if not isinstance(answer, dict):
        return set()
    if isinstance(answer.get("subject"), str):
        return {answer["subject"]}
    items = answer.get("items")
    if not isinstance(items, list):
        return set()
    return {subject for item in items for subject in subjects_in(item)}


def redact_shared_answers(
    project_id: UUID, subjects: set[str], needles: Needles | None = None
) -> int:
    """Empty the stored answers about one of `subjects` among others; with `needles`
    those that hold one."""
    records = IdempotencyRecord.objects.filter(
        project_id=project_id, session_id=answers_about_several(project_id)
    ).exclude(body=FORGOTTEN_ANSWER)
    ids = [
        pk
        for pk, body in records.values_list("pk", "body")
        if (needles is None or needles.are_in_json(body))
        and subjects & subjects_in(codec.loads(body, max_depth=10_000))
    ]
    return int(records.filter(pk__in=ids).update(body=FORGOTTEN_ANSWER))


def redact_audit(
    project_id: UUID,
    objects: Iterable[str],
    needles: Needles | None = None,
    name: str = "",
) -> int:
    """Empty the audit entries about these objects, and any that holds a needle, or a
    value that is `name`."""
    entries = AuditEntry.objects.in_project(project_id)
    ids = set(entries.filter(object__in=list(objects)).values_list("id", flat=True))
    if needles or name:
        ids |= _audit_with(project_id, needles or Needles(()), name)
    if not ids:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT agentstate_redact_audit(%s, %s::uuid[])", [project_id, list(ids)]
        )
        redacted: int = cursor.fetchone()[0]
    return redacted


def _audit_with(project_id: UUID, needles: Needles, name: str) -> set[UUID]:
    def is_telling(text: str) -> bool:
        return needles.are_in_json(text) or (bool(name) and codec.dumps(name) in text)

    entries = AuditEntry.objects.in_project(project_id).values_list(
        "id",
        Cast("before", TextField()),
        Cast("after", TextField()),
        "reason",
    )
    return {
        id_
        for id_, before, after, reason in entries.iterator(chunk_size=2000)
        if any(is_telling(text) for text in (before, after) if text)
        or needles.are_in(reason)
    }


class ContentColumn(NamedTuple):
    """A column of a table of some session, which holds what a client sent."""

    model: type[Model]
    field: "Field[Any, Any]"


def session_tables() -> Iterator[type[Model]]:
    """Every table whose rows belong to a session, of whichever app."""
    for model in apps.get_models():
        names = {field.column for field in model._meta.concrete_fields}
        if model._meta.db_table in HANDLED or not model._meta.managed:
            continue
        if {"project_id", "session_id"} <= names:
            yield model


def content_columns(model: type[Model], *, texts: bool) -> Iterator[ContentColumn]:
    for field in model._meta.concrete_fields:
        is_json = isinstance(field, ExactJSONField | JSONField)
        if (
            is_json
            or (texts and isinstance(field, TextField))
            or isinstance(field, TextField)
            and field.name in CONTENT
        ):
            yield ContentColumn(model, field)


def blank_tables(project_id: UUID, session_ids: list[UUID]) -> dict[str, int]:
    """Blank what clients sent in all tables of these sessions, as in their logs."""
    counts: dict[str, int] = {}
    for model in session_tables():
        for _, field in content_columns(model, texts=False):
            counts_of = _blank_column(model, field, project_id, session_ids)
            if counts_of:
                table = model._meta.db_table
                counts[table] = max(counts.get(table, 0), counts_of)
    return counts


def _blank_column(
    model: type[Model],
    field: "Field[Any, Any]",
    project_id: UUID,
    session_ids: list[UUID],
) -> int:
    is_text = isinstance(field, TextField)
    kind = "text" if is_text else field.db_type(connection)
    stand_in = blanked(field.name, "x" if is_text else {"x": 1})
    value = stand_in if is_text else codec.dumps(stand_in)
    table, column = model._meta.db_table, field.column
    with connection.cursor() as cursor:
        cursor.execute(
            f'UPDATE "{table}" SET "{column}" = %s::{kind}'
            " WHERE project_id = %s AND session_id = ANY(%s)"
            f' AND "{column}" IS NOT NULL'
            f' AND "{column}"::text <> ALL(%s)',
            [value, project_id, session_ids, [value, *EMPTY_VALUES]],
        )
        return int(cursor.rowcount)


def clean_tables(
    project_id: UUID, session_ids: list[UUID], needles: Needles
) -> dict[str, int]:
    """Take the needles out of all tables of these sessions, as out of their logs."""
    counts: dict[str, int] = {}
    for model in session_tables():
        for _, field in content_columns(model, texts=True):
            changed = _clean_column(model, field, project_id, session_ids, needles)
            if changed:
                table = model._meta.db_table
                counts[table] = max(counts.get(table, 0), changed)
    return counts


def _clean_column(
    model: type[Model],
    field: "Field[Any, Any]",
    project_id: UUID,
    session_ids: list[UUID],
    needles: Needles,
) -> int:
    table, column = model._meta.db_table, field.column
    is_text = isinstance(field, TextField)
    kind = "text" if is_text else field.db_type(connection)
    changed = 0
    with connection.cursor() as cursor:
        cursor.execute(
            f'SELECT DISTINCT "{column}"::text FROM "{table}"'
            " WHERE project_id = %s AND session_id = ANY(%s)"
            f' AND "{column}" IS NOT NULL',
            [project_id, session_ids],
        )
        for (text,) in cursor.fetchall():
            cleaned = needles.clean(text) if is_text else _clean_json(text, needles)
            if cleaned == text:
                continue
            cursor.execute(
                f'UPDATE "{table}" SET "{column}" = %s::{kind}'
                f" WHERE project_id = %s AND session_id = ANY(%s)"
                f' AND "{column}"::text = %s',
                [cleaned, project_id, session_ids, text],
            )
            changed += int(cursor.rowcount)
    return changed


def _clean_json(text: str, needles: Needles) -> str:
    value = codec.loads(text, max_depth=10_000)
    cleaned = needles.clean_json(value)
    return text if cleaned == value else codec.dumps(cleaned)


class RedisAway(Exception):
    """Redis could not be asked."""


def forget_in_redis(ids: Iterable[UUID], needles: Needles | None = None) -> int:
    """Delete the keys of these sessions and runs; with `needles` what holds one.

    Raises RedisAway.
    """
    client: Any = redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=settings.REDIS_TIMEOUT * 20,
        socket_connect_timeout=settings.REDIS_TIMEOUT,
    )
    marks = [str(id_).encode() for id_ in ids] + [id_.hex.encode() for id_ in ids]
    try:
        forgotten = 0
        for key in client.scan_iter(match=f"*{REDIS_PREFIX}*", count=1000):
            if any(mark in key for mark in marks):
                forgotten += _forget_key(client, key, needles)
        if forgotten:
            _rewrite_its_file(client)
        return forgotten
    except redis.RedisError as exc:
        raise RedisAway(type(exc).__name__) from exc
    finally:
        client.close()


def _rewrite_its_file(client: Any) -> None:
    """Have Redis write its append-only file anew, without what was deleted.

    One that has no such file, does not let us ask, or is at it already, is left alone.
    """
    with contextlib.suppress(redis.ResponseError):
        if client.config_get("appendonly").get("appendonly") == "yes":
            client.bgrewriteaof()


def _forget_key(client: Any, key: bytes, needles: Needles | None) -> int:
    if needles is None or needles.are_in(key.decode("utf-8", "replace")):
        return int(client.delete(key))
    kind = client.type(key)
    if kind == b"hash":
        return sum(
            int(client.hdel(key, name))
            for name, value in client.hgetall(key).items()
            if _holds(needles, name) or _holds(needles, value)
        )
    values: list[bytes] = []
    if kind == b"string":
        values = [client.get(key) or b""]
    elif kind == b"list":
        values = client.lrange(key, 0, -1)
    elif kind == b"set":
        values = list(client.smembers(key))
    elif kind == b"zset":
        values = client.zrange(key, 0, -1)
    if any(_holds(needles, value) for value in values):
        return int(client.delete(key))
    return 0


def _holds(needles: Needles, raw: bytes) -> bool:
    text = raw.decode("utf-8", "replace")
    try:
        return needles.are_in_json(text)
    except Exception:  # no JSON with a backslash in it: its plain text was looked at
        return False
