"""Facts from elsewhere: JSON lines, our own export, and those of mem0 and Letta.

Shapes as the projects publish them: mem0's `get_all` gives `{"results": [{"memory",
"user_id", "categories", "metadata", "created_at", …}]}`; Letta gives passages
(`{"text", "created_at", "tags"}`) and blocks (`{"label", "value"}`), alone or in an
agent's file.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from django.utils.dateparse import parse_datetime

from agentstate import codec
from agentstate.codec import MalformedJSON
from agentstate.errors import AppError, FieldError
from memory_app.export import FORMAT
from memory_app.models import Kind, SourceKind, Status
from memory_app.services import NewFact
from memory_app.services.told import FACT_MAX, METADATA_MAX_BYTES, NAME_MAX, NOTE_MAX

FORMATS = ("auto", "jsonl", "agentstate", "mem0", "letta")
METADATA_KEPT = ("categories", "tags", "label", "metadata")


def read_facts(
    document: Any, *, subject: str | None, format: str = "auto"
) -> list[NewFact]:
    """Return the facts that `document` holds: text of JSON lines, or a JSON value.

    `subject` is whom they are about where they do not say. Raises FieldError with the
    place of the first that cannot be read.
    """
    value = _lines(document) if isinstance(document, str) else document
    kind = _format_of(value) if format == "auto" else format
    items = {
        "jsonl": _plain,
        "agentstate": _exported,
        "mem0": _mem0,
        "letta": _letta,
    }[kind](value)
    return [_checked(index, item, subject) for index, item in enumerate(items)]


def _lines(text: str) -> Any:
    """Read one JSON value, or a value a line."""
    try:
        return codec.loads(text)
    except MalformedJSON:
        pass  # then it is a value a line
    return [
        _line(f"data[{number}]", line)
        for number, line in enumerate(text.splitlines())
        if line.strip()
    ]


def _line(path: str, line: str) -> Any:
    try:
        return codec.loads(line)
    except MalformedJSON as exc:
        raise FieldError(path, "not_json", "this line is not JSON") from exc
    except AppError as exc:
        raise FieldError(path, "invalid", exc.detail) from exc


def _format_of(value: Any) -> str:
    if isinstance(value, dict):
        if value.get("format") == FORMAT:
            return "agentstate"
        if "results" in value or "memories" in value:
            return "mem0"
        if {"passages", "blocks", "core_memory", "archival_memory"} & value.keys():
            return "letta"
    first = value[0] if isinstance(value, list) and value else value
    if isinstance(first, dict):
        if "memory" in first:
            return "mem0"
        if "fact" not in first and ({"text", "value"} & first.keys()):
            return "letta"
    return "jsonl"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """The items of a list, or the one item there is; each must be an object."""
    for index, item in enumerate(_listed(value)):
        if not isinstance(item, dict):
            raise FieldError(f"data[{index}]", "not_an_object", "must be an object")
        yield item


def _plain(value: Any) -> Iterator[dict[str, Any]]:
    for item in _listed(value):
        yield {"fact": item} if isinstance(item, str) else item


def _exported(value: Any) -> Iterator[dict[str, Any]]:
    if not isinstance(value, dict):
        raise FieldError("data", "not_an_object", "an export of ours is an object")
    for item in _objects(value.get("facts", [])):
        if item.get("status") in (Status.ACTIVE, Status.PROPOSED):
            yield item | {"subject": item.get("subject", value.get("subject"))}


def _mem0(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        value = value.get("results", value.get("memories", value))
    for item in _objects(value):
        yield {
            "fact": item.get("memory") or item.get("text"),
            "subject": item.get("user_id"),
            "valid_from": item.get("created_at"),
            "metadata": _kept(item),
        }


def _letta(value: Any) -> Iterator[dict[str, Any]]:
    parts = [value]
    if isinstance(value, dict):
        names = ("passages", "archival_memory", "blocks", "core_memory")
        parts = [value[name] for name in names if name in value] or parts
    for part in parts:
        for item in _objects(part):
            text = item.get("text") or item.get("value")
            # A block's limit and an empty block say nothing about anybody.
            if text:
                yield {
                    "fact": text,
                    "subject": item.get("user_id"),
                    "valid_from": item.get("created_at"),
                    "metadata": _kept(item),
                }


def _kept(item: dict[str, Any]) -> dict[str, Any]:
    return {name: item[name] for name in METADATA_KEPT if item.get(name)}


def _text(path: str, value: Any, most: int) -> str | None:
    """Return a text of at most `most` characters; None if it is no text."""
    if not isinstance(value, str):
        return None
    if len(value) > most:
        raise FieldError(path, "max_length", f"must have at most {most} characters")
    if "\x00" in value:
        raise FieldError(path, "null_character", "may not hold U+0000")
    return value


def _metadata(path: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {}
    if len(codec.dumps(value).encode()) > METADATA_MAX_BYTES:
        detail = f"must be at most {METADATA_MAX_BYTES} bytes as JSON"
        raise FieldError(path, "too_large", detail)
    return value


def _confidence(path: str, value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if not 0 <= value <= 1:
        raise FieldError(path, "out_of_range", "must be from 0 to 1")
    return float(value)


def _checked(index: int, item: Any, subject: str | None) -> NewFact:
    path = f"facts[{index}]"
    if not isinstance(item, dict):
        raise FieldError(path, "not_an_object", "must be an object or a text")
    text = item.get("fact")
    if not isinstance(text, str) or not text.strip() or len(text) > FACT_MAX:
        raise FieldError(f"{path}.fact", "invalid", "must be a text that is not blank")
    if "\x00" in text:
        raise FieldError(f"{path}.fact", "null_character", "may not hold U+0000")
    about = item.get("subject") or subject
    if not isinstance(about, str) or not about:
        raise FieldError(f"{path}.subject", "required", "say whom this is about")
    if len(about) > NAME_MAX or "\x00" in about:
        raise FieldError(f"{path}.subject", "invalid", "is no name of a subject")
    kind = item.get("kind", Kind.OTHER)
    if kind not in Kind.values:
        raise FieldError(f"{path}.kind", "invalid", "there is no such kind")
    begins = _instant(f"{path}.valid_from", item.get("valid_from"))
    ends = _instant(f"{path}.valid_to", item.get("valid_to"))
    if begins and ends and ends < begins:
        detail = "this is before valid_from"
        raise FieldError(f"{path}.valid_to", "out_of_range", detail)
    return NewFact(
        subject=about,
        fact=text,
        key=_text(f"{path}.key", item.get("key"), NAME_MAX),
        kind=kind,
        source_kind=_source_kind(item),
        confidence=_confidence(f"{path}.confidence", item.get("confidence")),
        pinned=item.get("pinned") is True,
        metadata=_metadata(f"{path}.metadata", item.get("metadata")),
        valid_from=begins,
        valid_to=ends,
        expires_at=_instant(f"{path}.expires_at", item.get("expires_at")),
        note=_text(f"{path}.note", item.get("note"), NOTE_MAX) or "",
        wants_review=item.get("status") == Status.PROPOSED,
        settled=bool(item.get("settled_by")),
    )


def _source_kind(item: dict[str, Any]) -> str:
    source = item.get("source")
    kind = source.get("kind") if isinstance(source, dict) else None
    return kind if kind in SourceKind.values else SourceKind.USER


def _instant(path: str, value: Any) -> datetime | None:
    if value is None:
        return None
    try:
        at = parse_datetime(value) if isinstance(value, str) else None
    except ValueError:
        at = None
    if at is None:
        raise FieldError(path, "invalid", "must be a time such as 2026-03-01T10:00:00Z")
    # Other systems export UTC without saying so.
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    try:
        return at.astimezone(UTC)
    except OverflowError as exc:
        detail = "must be between the years 1 and 9999 in UTC"
        raise FieldError(path, "out_of_range", detail) from exc
