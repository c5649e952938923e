"""manage.py import_sessions FILE --project P --format openai|anthropic|jsonl"""

import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any, BinaryIO

from django.core.management.base import BaseCommand, CommandError

from access_app.management.commands.create_key import find_project
from agentstate.errors import AppError
from agentstate.progress import ProgressBar
from sessions_app.exporting import FORMS
from sessions_app.importing import Counts, Import
from sessions_app.transcripts.reading import Source


class Command(BaseCommand):
    help = (
        "Import conversations, one JSON object a line. What was imported before is not "
        "stored again: a session is known by its line's `id`, or by a hash of the line "
        "if it has none; a message by its own `id`, or by its place. A bad line is "
        "told by its number, and the rest goes on; the exit code is then 1."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="JSON lines, UTF-8")
        parser.add_argument("--project", required=True, help="name, slug or id")
        parser.add_argument("--format", required=True, choices=FORMS)
        parser.add_argument("--agent", default="", help="of sessions that name none")
        parser.add_argument(
            "--session",
            default="",
            help="the key for lines that name no session; the file's name without it",
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="count, and store nothing"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        path: Path = options["file"]
        source = Source(
            project=find_project(options["project"]),
            form=options["format"],
            agent=options["agent"],
            session=options["session"] or path.stem,
        )
        try:
            with path.open("rb") as file:
                counts = self.run(file, source, path.stat().st_size, options["dry_run"])
        except OSError as exc:
            raise CommandError(f"{path}: {exc.strerror}") from exc
        would = "would be " if options["dry_run"] else ""
        self.stdout.write(
            f"{counts.sessions_made} sessions {would}made, "
            f"{counts.sessions_known} known; "
            f"{counts.events_added} events {would}added, {counts.events_known} known; "
            f"{counts.refused} lines refused"
        )
        if counts.refused:
            raise CommandError(f"{counts.refused} lines were not imported")

    def run(self, file: BinaryIO, source: Source, size: int, dry_run: bool) -> Counts:
        with ProgressBar(size, "bytes", sys.stderr) as bar:

            def refused(line: int, error: AppError) -> None:
                bar.clear()
                self.stderr.write(f"line {line}: {code_of(error)}: {error.detail}")

            def moved() -> None:
                bar.advance(file.tell() - bar.done)

            return Import(source, refused, moved=moved, dry_run=dry_run).run(file)


def code_of(error: AppError) -> str:
    """The code of the field that is wrong, where there is one."""
    fields = error.extra.get("errors") or [{"code": error.code}]
    return str(fields[0]["code"])
