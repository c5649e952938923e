"""What this server depends on, and whether it is there."""

import logging
from typing import TypedDict

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from psycopg_pool import PoolTimeout

logger = logging.getLogger(__name__)


class Report(TypedDict):
    status: str  # ready, degraded, unavailable
    checks: dict[str, str]  # ok, or what is wrong


def report() -> Report:
    """Without Postgres nothing works; without Redis or a worker most things do."""
    checks = {
        "postgres": _postgres(),
        "redis": _redis(),
        "worker": "unknown",
    }
    if checks["postgres"] == "ok":
        checks["migrations"] = _migrations()
        checks["worker"] = _worker()
        if checks["migrations"] == "ok":
            checks["embeddings"] = _embeddings()
    if checks["postgres"] != "ok" or checks["migrations"] != "ok":
        status = "unavailable"
    elif any(result != "ok" for result in checks.values()):
        status = "degraded"
    else:
        status = "ready"
    return {"status": status, "checks": checks}


def _postgres() -> str:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except (DatabaseError, PoolTimeout) as exc:
        logger.warning("postgres is not reachable", extra={"error": type(exc).__name__})
        return "unreachable"
    return "ok"


def _redis() -> str:
    client = redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=settings.REDIS_TIMEOUT,
        socket_connect_timeout=settings.REDIS_TIMEOUT,
    )
    try:
        client.ping()
    except redis.RedisError as exc:
        logger.warning("redis is not reachable", extra={"error": type(exc).__name__})
        return "unreachable"
    finally:
        client.close()
    return "ok"


_schema_is_current = False


def _migrations() -> str:
    """Looked at until it is right once: nobody takes migrations back under a server."""
    global _schema_is_current
    if _schema_is_current:
        return "ok"
    executor = MigrationExecutor(connection)
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    _schema_is_current = not missing
    return f"{len(missing)} not applied" if missing else "ok"


def _embeddings() -> str:
    """Facts that no embedder could take are found by words alone."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM (SELECT 1 FROM agent_memory"
            " WHERE embedding_error <> '' LIMIT 1000) failed"
        )
        failed = cursor.fetchone()[0]
    return f"{failed} facts not embedded" if failed else "ok"


def _worker() -> str:
    """A procrastinate worker beats every 10 seconds while it lives."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM procrastinate_workers"
            " WHERE last_heartbeat > now() - interval '45 seconds' LIMIT 1"
        )
        return "ok" if cursor.fetchone() else "none running"
