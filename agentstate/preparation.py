"""What has to be done before the first request: schema, static files, a way in."""

import hashlib
import hmac
import json
import secrets
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import dj_database_url
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.staticfiles.finders import get_finders
from django.core.management import call_command
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from access_app.keys import KeyText, is_secret
from access_app.models import ApiKey, Project
from access_app.scopes import (
    MEMORY_WRITE,
    RUNS_READ,
    RUNS_WORK,
    RUNS_WRITE,
    SESSIONS_READ,
    SESSIONS_WRITE,
)
from access_app.services import create_key, create_project
from sessions_app.feed import begin_generation

MANAGE = ".venv/bin/python manage.py"
ADMIN_NAME = "admin"
FIRST_KEY = "first key"
DEMO_PROJECT = "demo"
DEMO_KEY = "demo agent"
DEMO_SCOPES = (
    SESSIONS_READ,
    SESSIONS_WRITE,
    RUNS_READ,
    RUNS_WRITE,
    RUNS_WORK,
    MEMORY_WRITE,
)
# What an agent inferred waits for review, so that there is something to review.
DEMO_SETTINGS = {"memory": {"remember": {"agent": "review"}}}


@dataclass(frozen=True)
class WayIn:
    """How a person gets in. What is secret is None once it has been shown."""

    project: str | None
    admin_password: str | None
    key: str | None

    def lines(self, port: int) -> Iterator[str]:
        url = f"http://127.0.0.1:{port}"
        yield f"  docs     {url}/api/v1/docs"
        if self.admin_password:
            yield f"  admin    {url}/admin/  user {ADMIN_NAME}, password"
            yield f"           {self.admin_password}  (shown this once)"
        else:
            yield f"  admin    {url}/admin/  a new password:"
            yield f"           {manage()} changepassword {ADMIN_NAME}"
        if self.project:
            yield f"  project  {self.project}"
        if self.key:
            yield f"  API key  {self.key}  (shown this once)"
        else:
            project = shlex.quote(self.project or "NAME")
            yield "  API key  make one:"
            yield f"           {manage()} create_key --scopes all --project {project}"
        yield ""
        yield "Begin a session:"
        yield curl_line(url, self.key or "$KEY")


def manage() -> str:
    """The command as it reaches this server's data: pasted, it works."""
    if settings.DATA_DIR == settings.BASE_DIR / settings.DEFAULT_DATA_DIR:
        return MANAGE
    return f"AGENTSTATE_DATA_DIR={shlex.quote(str(settings.DATA_DIR))} {MANAGE}"


def curl_line(url: str, key: str) -> str:
    body = json.dumps({"agent": "support"})
    return (
        f'curl -s {url}/api/v1/sessions -H "Authorization: Bearer {key}"'
        f" -H \"Content-Type: application/json\" -d '{body}'"
    )


def prepare_database(database_url: str) -> None:
    """Point this process at the database and bring its schema up to date.

    The settings were read before the services had an address. This process needs one
    connection and no pool, whose threads would be in the way of starting others.
    """
    database = settings.DATABASES["default"]
    options = {k: v for k, v in database["OPTIONS"].items() if k != "pool"}
    found = dj_database_url.parse(database_url)
    database |= {**found, "ENGINE": database["ENGINE"]}
    database["OPTIONS"] = {**found.get("OPTIONS", {}), **options}
    executor = MigrationExecutor(connection)
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        call_command("migrate", interactive=False, verbosity=0)
    else:
        begin_generation()  # the data may have been restored; migrate looks too


def collect_static() -> None:
    """Copy the packages' and our static files into the data folder, if they changed."""
    settings.STATIC_ROOT.mkdir(parents=True, exist_ok=True)
    stamp = settings.STATIC_ROOT / ".collected"
    wanted = _static_state()
    if not stamp.exists() or stamp.read_text() != wanted:
        call_command("collectstatic", interactive=False, verbosity=0, clear=True)
        stamp.write_text(wanted)


def _static_state() -> str:
    state = hashlib.sha256()
    for finder in get_finders():
        for name, storage in finder.list([]):
            found = Path(storage.path(name)).stat()
            state.update(f"{name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return state.hexdigest()


def open_way_in() -> WayIn:
    """Make the first admin, project and key, where there is none of the kind."""
    project = Project.objects.order_by("created_at").first()
    key = None
    if project is None:
        project = (
            create_project(DEMO_PROJECT, settings=DEMO_SETTINGS)
            if settings.DEMO
            else create_project("default")
        )
        key = create_key(project, scopes=["all"], name=FIRST_KEY).text
    return WayIn(project.name, _first_admin(), key)


def _first_admin() -> str | None:
    if User.objects.filter(is_superuser=True).exists():
        return None
    password = secrets.token_urlsafe(15)
    User.objects.create_superuser(ADMIN_NAME, password=password)
    return password


def demo_key() -> str | None:
    """The demo agent's key; None without a demo project, or when it was revoked.

    Its secret is derived from the server's own, so it can be told again at each start
    and still lies nowhere in the clear.
    """
    project = Project.objects.filter(name=DEMO_PROJECT).first()
    if project is None:
        return None
    secret = hmac.digest(settings.SECRET_KEY.encode(), DEMO_KEY.encode(), "sha256")
    keys = ApiKey.objects.in_project(project.id).filter(name=DEMO_KEY)
    key = keys.order_by("-created_at").first()
    is_ours = key is not None and is_secret(secret.hex(), bytes(key.secret_hash))
    if key is None or not is_ours or not set(key.scopes) >= set(DEMO_SCOPES):
        return create_key(
            project,
            scopes=DEMO_SCOPES,
            name=DEMO_KEY,
            secret=secret.hex(),
        ).text
    return None if key.is_revoked else str(KeyText(key.prefix, secret.hex()))
