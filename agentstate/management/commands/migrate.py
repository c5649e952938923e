from typing import Any

from django.core.management.commands import migrate
from django.db import connections

from agentstate.online_migrations import migrate_online


class Command(migrate.Command):
    help = f"{migrate.Command.help} Waits for no lock long, so the server can go on."

    def handle(self, *args: Any, **options: Any) -> None:
        migrate_online(
            connections[options["database"]],
            lambda: super(Command, self).handle(*args, **options),
            self.stderr.write,
        )
