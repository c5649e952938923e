"""manage.py create_project NAME"""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from access_app.errors import NameTaken
from access_app.models import Project
from access_app.services import create_project
from agentstate.errors import AppError


class Command(BaseCommand):
    help = "Make a project, or show the one of that name."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        project, made = ensure_project(options["name"])
        if options["json"]:
            shown = {
                "id": str(project.id),
                "name": project.name,
                "slug": project.slug,
                "created": made,
            }
            self.stdout.write(json.dumps(shown))
        else:
            word = "created" if made else "exists"
            self.stdout.write(f"project {project.name} {word}: {project.id}")


def ensure_project(name: str) -> tuple[Project, bool]:
    """Return the project of this name and whether it was made just now."""
    name = name.strip()
    if found := Project.objects.filter(name=name).first():
        return found, False
    try:
        return create_project(name), True
    except NameTaken:  # by another process, in between
        return Project.objects.get(name=name), False
    except AppError as exc:
        raise CommandError(exc.detail) from exc
