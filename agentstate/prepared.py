"""Statements that Postgres parses once for a connection, not once for a call."""

from contextlib import AbstractContextManager
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.backends.postgresql.base import ServerBindingCursor

make_cursor: Any = ServerBindingCursor


def prepared_cursor() -> AbstractContextManager[Any]:
    """A cursor for the calls of our functions, which are few texts and very many calls.

    Where the database is reached through a pooler of transactions, statements cannot
    be kept (AGENTSTATE_DB_PREPARED=0), and this is a cursor like any other.
    """
    if not settings.DB_PREPARED:
        return connection.cursor()
    connection.ensure_connection()
    database: Any = connection
    cursor: AbstractContextManager[Any] = database._prepare_cursor(
        make_cursor(database.connection)
    )
    return cursor
