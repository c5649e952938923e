"""manage.py check_invariants [--project P]"""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from access_app.management.commands.create_key import find_project
from runs_app.invariants import RULES, broken_invariants


class Command(BaseCommand):
    help = (
        "Check what must hold between runs, steps, leases, waits, timers, limits and "
        "logs. Reads only. Exits with 1 if something is broken."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--project", help="name, slug or id; all without it")

    def handle(self, *args: Any, **options: Any) -> None:
        project = find_project(options["project"]) if options["project"] else None
        found = 0
        for broken in broken_invariants(project.id if project else None):
            found += 1
            self.stdout.write(str(broken))
        self.stdout.write(f"{len(RULES)} rules checked: {found} broken")
        if found:
            raise CommandError(f"{found} invariants are broken")
