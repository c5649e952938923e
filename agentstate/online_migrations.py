"""Migrating while the server works: no statement makes others wait for long.

ALTER TABLE waits until all who read the table are done, and whoever comes later waits
behind it. So it gives up after a moment, lets them pass, and tries again. What is built
CONCURRENTLY blocks nobody and may wait; one that was cut short is built anew.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.errors import LockNotAvailable

LOCK_TIMEOUT_MS = 500
ATTEMPTS = 120
PAUSE_SECONDS = 0.5
_INDEX = re.compile(r'CREATE (?:UNIQUE )?INDEX CONCURRENTLY (?:IF NOT EXISTS )?"?(\w+)')


def migrate_online(
    connection: BaseDatabaseWrapper,
    migrate: Callable[[], object],
    say: Callable[[str], object],
) -> None:
    """Run `migrate`, again and again while others hold what it needs.

    What was applied stays applied. Raises OperationalError after a minute or two.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with _short_waits(connection):
                migrate()
            return
        except OperationalError as exc:
            if not isinstance(exc.__cause__, LockNotAvailable) or attempt == ATTEMPTS:
                raise
            if attempt == 1:
                say("A table is in use; trying again until it is free for a moment.")
            time.sleep(PAUSE_SECONDS)


@contextmanager
def _short_waits(connection: BaseDatabaseWrapper) -> Iterator[None]:
    def execute(
        execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any
    ) -> Any:
        if "CONCURRENTLY" not in str(sql):
            return execute(sql, params, many, context)
        _set_timeout(connection, 0)
        try:
            if found := _INDEX.search(str(sql)):
                _drop_unfinished(connection, found[1])
            return execute(sql, params, many, context)
        finally:
            _set_timeout(connection, LOCK_TIMEOUT_MS)

    _set_timeout(connection, LOCK_TIMEOUT_MS)
    try:
        with connection.execute_wrapper(execute):
            yield
    finally:
        if connection.is_usable():
            with connection.cursor() as cursor:
                cursor.execute("RESET lock_timeout")


def _set_timeout(connection: BaseDatabaseWrapper, milliseconds: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT set_config('lock_timeout', %s, false)", [str(milliseconds)]
        )


def _drop_unfinished(connection: BaseDatabaseWrapper, index: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT FROM pg_index WHERE indexrelid = to_regclass(%s)"
            " AND NOT indisvalid",
            [index],
        )
        if cursor.rowcount:
            cursor.execute(
                f"DROP INDEX CONCURRENTLY {connection.ops.quote_name(index)}"
            )
