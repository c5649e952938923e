"""manage.py serve"""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from agentstate.embedded import ServiceFailed
from agentstate.supervisor import CannotServe, Supervisor


class Command(BaseCommand):
    help = "Start Postgres, Valkey, the web and the worker, all behind one port."
    # The services are not there yet, and `prepare` looks at migrations itself.
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=int, default=settings.PORT)

    def handle(self, *args: Any, **options: Any) -> None:
        supervisor = Supervisor(
            settings.DATA_DIR,
            options["port"],
            web_processes=settings.WEB_PROCESSES,
        )
        try:
            supervisor.run()
        except (CannotServe, ServiceFailed) as exc:
            raise CommandError(str(exc)) from exc
