"""manage.py export_sessions --project P --format openai|anthropic|jsonl"""

import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from django.core.management.base import BaseCommand, CommandError

from access_app.management.commands.create_key import find_project
from agentstate.progress import ProgressBar
from sessions_app.exporting import FORMS, export_session
from sessions_app.models import Session


class Writable(Protocol):
    def write(self, text: str, /) -> object: ...


class Command(BaseCommand):
    help = (
        "Export sessions, oldest first. jsonl is complete, one event a line, and can "
        "be imported elsewhere; openai and anthropic give one conversation a line."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--project", required=True, help="name, slug or id")
        parser.add_argument("--format", required=True, choices=FORMS)
        parser.add_argument("--output", type=Path, help="a file; else standard output")
        parser.add_argument(
            "--session", nargs="+", default=[], help="only these, by id or key"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        project = find_project(options["project"])
        sessions = Session.objects.in_project(project.id)
        if wanted := options["session"]:
            missing = [each for each in wanted if not sessions.named([each]).exists()]
            if missing:
                raise CommandError(f"there is no session {', '.join(missing)}")
            sessions = sessions.named(wanted)
        ids = sessions.order_by("id").values_list("id", flat=True)
        with (
            self.output(options["output"]) as out,
            ProgressBar(len(ids), "sessions", sys.stderr) as bar,
        ):
            for session_id in ids:
                # Read when its turn comes: the list may be long.
                session = sessions.filter(id=session_id).first()
                if session is not None:
                    for piece in export_session(session, options["format"]):
                        out.write(piece)
                bar.advance()

    @contextmanager
    def output(self, path: Path | None) -> Iterator[Writable]:
        """The file, which appears when it is whole; or standard output."""
        if path is None:
            # Not Django's wrapper: it would end each piece with a line feed.
            yield getattr(self.stdout, "_out", self.stdout)
            return
        part = path.with_name(f"{path.name}.part")
        try:
            with part.open("w", encoding="utf-8", newline="\n") as file:
                yield file
            part.replace(path)
        except OSError as exc:
            raise CommandError(f"{path}: {exc.strerror}") from exc
        finally:
            part.unlink(missing_ok=True)
