"""manage.py verify_replay [--session ID] [--project P] [--json]"""

from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError

from access_app.management.commands.create_key import find_project
from agentstate import codec
from agentstate.progress import ProgressBar
from sessions_app.models import Session
from sessions_app.projection import (
    NOTHING,
    Difference,
    Orphan,
    differences_of,
    orphans,
    projections,
)

BATCH = 500


class Command(BaseCommand):
    help = (
        "Fold every session's log anew and report where the rows that were made of it "
        "hold something else. Exits with 1 if there is a difference."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--project", help="name, slug or id; all without it")
        parser.add_argument("--session", help="one session, by id or key")
        parser.add_argument(
            "--json", action="store_true", help="print one JSON object a line"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        project = find_project(options["project"]) if options["project"] else None
        sessions, found = 0, 0
        wanted = Session.objects.all()
        if project:
            wanted = wanted.in_project(project.id)
        if options["session"]:
            wanted = wanted.named([options["session"]])
            if not wanted.exists():
                raise CommandError(f"there is no session {options['session']!r}")
        with ProgressBar(wanted.count(), "sessions", self.stderr) as bar:
            for project_id, session_id in each_id(wanted):
                for difference in differences_of(project_id, session_id):
                    found += 1
                    self.report(difference, options["json"])
                sessions += 1
                bar.advance()
        if not options["session"]:
            for orphan in orphans(project.id if project else None):
                found += 1
                self.report(orphan, options["json"])
        if options["json"]:
            summary = {"sessions": sessions, "differences": found}
            self.stdout.write(codec.dumps(summary))
        else:
            names = ", ".join(projections())
            self.stdout.write(
                f"{sessions} sessions verified ({names}): {found} differences"
            )
        if found:
            raise CommandError(f"{found} differences from the log")

    def report(self, found: Difference | Orphan, as_json: bool) -> None:
        if not as_json:
            self.stdout.write(str(found))
            return
        shown: dict[str, Any] = {"session": str(found.session_id)}
        if isinstance(found, Orphan):
            shown["orphans_in"] = found.table
        else:
            shown["path"] = found.path
            for name, value in (("log", found.log), ("row", found.row)):
                if value is not NOTHING:
                    shown[name] = value
        self.stdout.write(codec.dumps(shown))


def each_id(sessions: Any) -> Iterator[tuple[UUID, UUID]]:
    """Yield project and session ids, oldest first, a batch at a time."""
    after = UUID(int=0)
    while batch := list(
        sessions.filter(id__gt=after)
        .order_by("id")
        .values_list("project_id", "id")[:BATCH]
    ):
        yield from batch
        after = batch[-1][1]
