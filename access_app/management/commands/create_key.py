"""manage.py create_key --project NAME --scopes a,b"""

import json
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError

from access_app.models import ApiKey, Project
from access_app.services import create_key
from agentstate.errors import AppError


class Command(BaseCommand):
    help = (
        "Make an API key and print it. It is shown this once; only a hash is kept. "
        "With --name and --if-missing nothing is made if a usable key has that name."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--project", required=True, help="name, slug or id")
        parser.add_argument("--scopes", required=True, help="comma separated, or all")
        parser.add_argument("--name", default="")
        parser.add_argument("--subject", help="bind the key to one subject")
        parser.add_argument("--session", help="bind the key to one session's id")
        parser.add_argument("--expires-days", type=int)
        parser.add_argument("--rate-limit", type=int, help="calls a minute; 0: none")
        parser.add_argument("--if-missing", action="store_true")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        project = find_project(options["project"])
        if options["if_missing"] and not options["name"]:
            raise CommandError("--if-missing needs --name")
        if options["if_missing"] and (found := usable_key(project, options["name"])):
            self.show(found, None, options["json"])
            return
        try:
            key, text = create_key(project, **key_options(options))
        except AppError as exc:
            raise CommandError(exc.detail) from exc
        self.show(key, text, options["json"])

    def show(self, key: ApiKey, text: str | None, as_json: bool) -> None:
        """`text` is None for a key that exists already and cannot be shown again."""
        if as_json:
            self.stdout.write(json.dumps(shown(key) | {"key": text}))
        elif text is None:
            self.stdout.write(f"key {key.name} exists: {key.id}, as_{key.prefix}_…")
        else:
            self.stdout.write(f"key: {text}")
            self.stdout.write(f"id: {key.id}")
            self.stdout.write(f"scopes: {','.join(key.scopes)}")
            self.stderr.write("The key is shown this once: keep it now.")


def find_project(wanted: str) -> Project:
    """Return the project of this name, slug or id. Raises CommandError."""
    lookups: list[dict[str, Any]] = [{"name": wanted}, {"slug": wanted}]
    if (as_id := _uuid(wanted)) is not None:
        lookups.append({"id": as_id})
    for lookup in lookups:
        if project := Project.objects.filter(**lookup).first():
            return project
    raise CommandError(
        f"there is no project {wanted!r}; make it with: manage.py create_project NAME"
    )


def usable_key(project: Project, name: str) -> ApiKey | None:
    return ApiKey.objects.in_project(project.id).usable().filter(name=name).first()


def key_options(options: dict[str, Any]) -> dict[str, Any]:
    """Translate the command's options to those of `create_key`."""
    session_id = _uuid(options["session"]) if options["session"] else None
    if options["session"] and session_id is None:
        raise CommandError("--session is the id of a session, a UUID")
    days, limit = options["expires_days"], options["rate_limit"]
    if days is not None and days < 1:
        raise CommandError("--expires-days is 1 or more")
    if limit is not None and limit < 0:
        raise CommandError("--rate-limit is 0 or more")
    return {
        "scopes": [s for s in map(str.strip, options["scopes"].split(",")) if s],
        "name": options["name"],
        "subject": options["subject"],
        "session_id": session_id,
        "expires_in": timedelta(days=days) if days is not None else None,
        "rate_limit_per_minute": limit,
    }


def shown(key: ApiKey) -> dict[str, Any]:
    return {
        "id": str(key.id),
        "project": str(key.project_id),
        "name": key.name,
        "prefix": key.prefix,
        "scopes": list(key.scopes),
        "subject": key.subject,
        "session": str(key.session_id) if key.session_id else None,
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
    }


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
