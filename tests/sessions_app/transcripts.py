"""Running the two commands over files, as a person would."""

import json
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from django.core.management import CommandError, call_command

from agentstate import codec
from agentstate.json_patch import diff


class Imported(NamedTuple):
    """What an import printed, and whether it exits with 0."""

    out: str
    errors: str
    ok: bool


def write_lines(path: Path, lines: list[Any]) -> Path:
    """Write values as JSON lines; text goes in as it is."""
    texts = [line if isinstance(line, str) else codec.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def run_import(path: Path, project: Any, form: str, **options: Any) -> Imported:
    out, errors = StringIO(), StringIO()
    try:
        call_command(
            "import_sessions",
            str(path),
            project=str(project.id),
            format=form,
            stdout=out,
            stderr=errors,
            **options,
        )
    except CommandError:
        return Imported(out.getvalue(), errors.getvalue(), False)
    return Imported(out.getvalue(), errors.getvalue(), True)


def run_export(project: Any, form: str, **options: Any) -> list[Any]:
    out = StringIO()
    call_command(
        "export_sessions",
        project=str(project.id),
        format=form,
        stdout=out,
        **options,
    )
    return [
        codec.loads(line, max_depth=200) for line in out.getvalue().split("\n") if line
    ]


def assert_same(a: Any, b: Any) -> None:
    """Equal as JSON values, down to how a number is written."""
    assert diff(a, b) == []


def read_jsonl(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]
