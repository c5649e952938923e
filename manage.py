#!/usr/bin/env python
"""Django's command-line utility for administrative tasks."""

import os
import sys

SERVES = {"serve", "procrastinate"}


def main() -> None:
    """Run administrative tasks."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "agentstate.settings")
    if sys.argv[1:2] and sys.argv[1] not in SERVES:
        # A command has one thread, and says at once when there is no database.
        os.environ.setdefault("AGENTSTATE_DB_POOL_SIZE", "0")
    from django.core.management import execute_from_command_line
    from django.db import OperationalError

    try:
        execute_from_command_line(sys.argv)
    except OperationalError as exc:
        if "--traceback" in sys.argv:
            raise
        sys.exit(
            f"Postgres cannot be used: {str(exc).strip()}\n"
            "Start the server with `make run`, or set DATABASE_URL."
        )


if __name__ == "__main__":
    main()
