"""The queries that a call costs, counted the same on a fast and on a slow machine."""

from django.db import connection
from django.test.utils import CaptureQueriesContext


class CallQueries(CaptureQueriesContext):
    """What the calls of the block ask of the database, but for who calls.

    A key is read anew when the last look at it is nine tenths of a second old, and its
    use is written once a minute: whether that falls into the block is the clock's to
    say.
    """

    def __init__(self):
        super().__init__(connection)

    @property
    def captured_queries(self):
        return [q for q in super().captured_queries if not is_about_the_key(q["sql"])]


def is_about_the_key(sql):
    return '"access_app_apikey"."prefix" =' in sql or (
        sql.startswith("UPDATE") and '"last_used_at"' in sql
    )
