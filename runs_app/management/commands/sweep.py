"""manage.py sweep [--project P]"""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from access_app.management.commands.create_key import find_project
from runs_app.sweeps import sweep


class Command(BaseCommand):
    help = (
        "End expired leases, fire due timers, fill limits that have room, go on with "
        "cancels that were cut short, and charge runs what was used below them. Any "
        "process may, beside any other."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--project", help="name, slug or id; all without it")

    def handle(self, *args: Any, **options: Any) -> None:
        project = find_project(options["project"]) if options["project"] else None
        swept = sweep(project.id if project else None)
        told = ", ".join(f"{n} {name}" for name, n in swept._asdict().items())
        self.stdout.write(told)
