"""A check of pooled database connections that costs no round trip."""

import select
from typing import Any

import psycopg


def check_open(connection: psycopg.Connection[Any]) -> None:
    """Raise psycopg.OperationalError if the server has closed this idle connection.

    The pool then drops it and tries the next, so that the first requests after a
    restart of Postgres succeed. An idle connection has nothing to read, unless its
    server said good-bye: a look at the socket is enough, where psycopg_pool's own check
    asks the server each time.
    """
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    # First its farewell is read, then the end; a mere notice leaves nothing to read.
    while poll.poll(0):
        connection.pgconn.consume_input()
