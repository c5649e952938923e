"""Ids made by the server: UUIDv7, so that new rows land at the end of an index."""

from uuid import UUID

import uuid_utils.compat


def new_id() -> UUID:
    return uuid_utils.compat.uuid7()
