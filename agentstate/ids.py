"""Ids made by the server: UUIDv7, so that new rows land at the end of an index."""

from datetime import datetime
from uuid import UUID

import uuid_utils.compat


def new_id() -> UUID:
    return uuid_utils.compat.uuid7()


def first_id_at(at: datetime) -> UUID:
    """The lowest id that can have been made at `at`: ids are a range of time."""
    milliseconds = int(at.timestamp() * 1000)
    return UUID(int=milliseconds << 80)
