"""manage.py create_project and create_key."""

import io
import json
import os
import subprocess
import sys

import pytest
from django.core.management import CommandError, call_command

from access_app.models import ApiKey, Project
from agentstate.ids import new_id
from tests.fixtures import ROOT, Api


def run(*arguments):
    out = io.StringIO()
    call_command(*arguments, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def run_json(*arguments):
    return json.loads(run(*arguments, "--json"))


@pytest.fixture
def name():
    return f"Command {new_id()}"


def test_a_project_is_made_once(name):
    first = run_json("create_project", name)
    second = run_json("create_project", name)
    assert (first["created"], second["created"]) == (True, False)
    assert first["id"] == second["id"]
    assert Project.objects.get(pk=first["id"]).name == name


def test_a_project_without_a_name_is_refused():
    with pytest.raises(CommandError, match="name"):
        run("create_project", "  ")


def test_two_names_with_one_slug_are_two_projects(name):
    first = run_json("create_project", name)
    second = run_json("create_project", f"{name}!")
    assert first["slug"] != second["slug"]


@pytest.mark.parametrize("by", ["name", "slug", "id"])
def test_a_key_is_made_and_works(project, by):
    made = run_json(
        "create_key",
        "--project",
        str(getattr(project, by)),
        "--scopes",
        "sessions:read, sessions:write",
        "--subject",
        "user-1",
    )
    whoami = Api(made["key"]).get("/api/v1/whoami").json
    assert whoami["project_id"] == str(project.id)
    assert whoami["scopes"] == ["sessions:read", "sessions:write"]
    assert whoami["subject"] == "user-1"


def test_the_plain_output_can_be_cut_out(project):
    line = run("create_key", "--project", project.name, "--scopes", "all").splitlines()
    assert line[0].startswith("key: as_")
    assert Api(line[0].split()[1]).get("/api/v1/whoami").status_code == 200


def test_every_call_makes_a_new_key(project):
    command = ("create_key", "--project", project.name, "--scopes", "all")
    assert run_json(*command)["key"] != run_json(*command)["key"]


def test_if_missing_makes_a_named_key_once(project):
    command = (
        *("create_key", "--project", project.name, "--scopes", "all"),
        *("--name", "ci", "--if-missing"),
    )
    first, second = run_json(*command), run_json(*command)
    assert first["key"] and second["key"] is None
    assert first["id"] == second["id"]
    assert ApiKey.objects.in_project(project.id).count() == 1


def test_options_reach_the_key(project):
    session_id = new_id()
    made = run_json(
        *("create_key", "--project", project.name, "--scopes", "all"),
        *("--session", str(session_id), "--expires-days", "2", "--rate-limit", "60"),
    )
    key = ApiKey.objects.get(pk=made["id"])
    assert key.session_id == session_id
    assert key.rate_limit_per_minute == 60
    assert 1.9 < (key.expires_at - key.created_at).total_seconds() / 86400 <= 2.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--project", "no such", "--scopes", "all"], "create_project"),
        (["--scopes", "sessions:own"], "sessions:own"),
        (["--scopes", ","], "at least one"),
        (["--scopes", "all", "--session", "s-1"], "UUID"),
        (["--scopes", "all", "--expires-days", "0"], "1 or more"),
        (["--scopes", "all", "--rate-limit", "-1"], "0 or more"),
        (["--scopes", "all", "--if-missing"], "--name"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(project, arguments, said):
    if "--project" not in arguments:
        arguments = ["--project", project.name, *arguments]
    with pytest.raises(CommandError, match=said):
        run("create_key", *arguments)
    assert not ApiKey.objects.in_project(project.id).exists()


def test_without_a_database_it_says_so_at_once():
    done = subprocess.run(
        [sys.executable, "manage.py", "create_project", "x"],
        cwd=ROOT,
        env=os.environ | {"DATABASE_URL": "postgres://a:hidden@127.0.0.1:1/none"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Postgres cannot be used")
    assert "Traceback" not in done.stderr and "hidden" not in done.stderr
