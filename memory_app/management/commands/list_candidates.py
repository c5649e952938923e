"""manage.py list_candidates FILE: what promotion would keep of transcripts, to read."""

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from memory_app.policy import Policy
from memory_app.promotion.candidates import Candidate
from memory_app.promotion.reading import ASSISTANT, USER, Utterance, text_of
from memory_app.promotion.services import EXTRACTORS

ROLES = {"user": USER, "assistant": ASSISTANT}


class Command(BaseCommand):
    help = (
        "Print the facts that an extractor proposes from transcripts: JSON lines of "
        '{"id", "messages": [{"role", "content"}]}. Nothing is stored.'
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path)
        parser.add_argument("--extractor", choices=sorted(EXTRACTORS), default="rules")
        parser.add_argument("--json", action="store_true", help="print JSON lines")

    def handle(self, *args: Any, **options: Any) -> None:
        if not options["file"].is_file():
            raise CommandError(f"there is no file {options['file']}")
        count = 0
        for name, candidate in candidates_of(options["file"], options["extractor"]):
            count += 1
            self.stdout.write(
                json.dumps(as_json(name, candidate), ensure_ascii=False)
                if options["json"]
                else f"{name} #{','.join(map(str, candidate.seqs))} "
                f"[{candidate.kind}] {candidate.text}"
            )
        if not options["json"]:
            self.stdout.write(f"{count} facts")


def candidates_of(path: Path, extractor: str) -> Iterator[tuple[str, Candidate]]:
    """Yield the candidates of each transcript; a seq is the message's place from 0."""
    # Not splitlines: a text may hold U+2028, which ends no line of JSON lines.
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                name, said = _read(line)
            except (ValueError, KeyError, TypeError, AttributeError) as exc:
                raise CommandError(
                    f'line {number}: no JSON of {{"id", "messages": [{{"role", '
                    f'"content"}}]}}: {exc!r}'
                ) from exc
            for candidate in EXTRACTORS[extractor](said, Policy()).candidates:
                yield name, candidate


def _read(line: str) -> tuple[str, list[Utterance]]:
    transcript = json.loads(line)
    return transcript["id"], [
        Utterance(seq, ROLES[m["role"]], text_of(m.get("content")), EPOCH)
        for seq, m in enumerate(transcript["messages"])
        if m["role"] in ROLES and text_of(m.get("content")).strip()
    ]


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def as_json(name: str, candidate: Candidate) -> dict[str, Any]:
    return {
        "transcript": name,
        "seqs": list(candidate.seqs),
        "kind": candidate.kind,
        "fact": candidate.text,
    }
