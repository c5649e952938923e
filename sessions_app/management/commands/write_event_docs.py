"""manage.py write_event_docs [--check]"""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from sessions_app.event_docs import events_markdown


class Command(BaseCommand):
    help = "Write docs/events.md from the event types that the code knows."
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--check",
            action="store_true",
            help="write nothing; fail if it is not current",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        path = settings.BASE_DIR / "docs" / "events.md"
        text = events_markdown()
        if not options["check"]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            raise CommandError("docs/events.md is not current: run make schema")
