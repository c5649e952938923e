"""The one clock that decides: the database's.

Processes run on machines whose clocks differ; leases, expiry and retention are settled
by `agentstate_now()` alone. Tests move time by redefining that function.
"""

from datetime import datetime

from django.db import connection
from django.db.models import DateTimeField, Func


class Now(Func):
    """`agentstate_now()` as an expression, for filters, updates and defaults."""

    function = "agentstate_now"
    arity = 0
    output_field = DateTimeField()


def db_now() -> datetime:
    with connection.cursor() as cursor:
        cursor.execute("SELECT agentstate_now()")
        now: datetime = cursor.fetchone()[0]
    return now
