"""pgvector: made where this role may, asked for in one clear line where it may not."""

from django.core.management.base import CommandError
from django.db import DatabaseError, connections, transaction

NAME = "vector"
# 0.8 brought iterative index scans, without which filters starve a search.
MINIMUM = (0, 8)


class ExtensionMissing(CommandError):
    """pgvector is not there, and a superuser has to act."""


def ensure_pgvector(using: str = "default") -> None:
    """Make sure that pgvector is in the database. Raises ExtensionMissing."""
    version = _installed_version(using)
    if version is None:
        _create(using)
        version = _installed_version(using)
    assert version is not None
    if _parsed(version) < MINIMUM:
        raise ExtensionMissing(
            f"pgvector {version} is too old, 0.8 or newer is needed. As a superuser, "
            f"in this database: ALTER EXTENSION {NAME} UPDATE;"
        )


def _installed_version(using: str) -> str | None:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT extversion FROM pg_extension WHERE extname = %s", [NAME])
        row = cursor.fetchone()
    return None if row is None else str(row[0])


def _create(using: str) -> None:
    if not _is_available(using):
        raise ExtensionMissing(
            "pgvector is not installed on this Postgres server. Install pgvector 0.8 "
            f"or newer there, then as a superuser: CREATE EXTENSION {NAME};"
        )
    try:
        with transaction.atomic(using), connections[using].cursor() as cursor:
            cursor.execute(f"CREATE EXTENSION IF NOT EXISTS {NAME}")
    except DatabaseError as exc:
        raise ExtensionMissing(
            "The database has no pgvector, and this role may not create it. As a "
            f"superuser, in this database: CREATE EXTENSION {NAME};"
        ) from exc


def _is_available(using: str) -> bool:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_available_extensions WHERE name = %s", [NAME])
        return cursor.fetchone() is not None


def _parsed(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())
