"""The one JSON codec: what a client sends comes back equal, or is refused with a path.

Kept exactly: integers of any size that Python reads, decimals digit for digit (as
Decimal), U+0000 in strings, the order of keys. Refused: NaN and Infinity, numbers that
no double can hold, doubled keys, lone surrogates, nesting deeper than the limit. What
is refused raises FieldError with the JSON path, `events[1].payload.content`.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from math import isinf
from typing import Any

import simplejson
from django.conf import settings
from simplejson import RawJSON

from agentstate.errors import AppError, FieldError

__all__ = [
    "MalformedJSON",
    "RawJSON",
    "check_depth",
    "dumps",
    "inside",
    "json_path",
    "loads",
]

type JSONValue = (
    dict[str, JSONValue] | list[JSONValue] | str | int | Decimal | float | bool | None
)
type JSONObject = dict[str, JSONValue]
type Path = tuple[str | int, ...]

# A string that never ends is one token too: else each quote in it would begin another.
TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{},]', re.DOTALL)
COLON = re.compile(r"[ \t\n\r]*+:")
SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")
# Kept: to make one costs more than to write a small value.
ENCODER = simplejson.JSONEncoder(
    ensure_ascii=False, use_decimal=True, allow_nan=False, separators=(",", ":")
)


class MalformedJSON(AppError):
    """The body is not JSON."""

    code, status = "malformed_json", 400


@contextmanager
def inside(name: str) -> Iterator[None]:
    """Say of JSON that a field holds as text where it is wrong in the request."""
    try:
        yield
    except MalformedJSON as exc:
        detail = exc.detail.replace("The body is not JSON", "is not JSON")
        raise FieldError(name, MalformedJSON.code, detail) from exc
    except FieldError as exc:
        dot = "" if exc.path.startswith("[") or not exc.path else "."
        path = f"{name}{dot}{exc.path}"
        raise FieldError(path, exc.field_code, exc.field_detail) from exc


class Refused:
    """Stands in the parsed tree for a value that cannot be kept, until it is found."""

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        self.detail = detail


def loads(raw: bytes | str, *, max_depth: int | None = None) -> JSONValue:
    """Return the value that `raw` spells; decimals are Decimal, objects are dict.

    Raises MalformedJSON (400) if it is not JSON at all and FieldError (422) if it holds
    something that could not be given back equal. `max_depth` defaults to
    settings.JSON_MAX_DEPTH.
    """
    text = _decoded(raw)
    check_depth(text, max_depth or settings.JSON_MAX_DEPTH)
    refused: list[Refused] = []
    try:
        value: JSONValue = _parse(text, refused)
    except simplejson.JSONDecodeError as exc:
        raise MalformedJSON(f"The body is not JSON: {exc}") from exc
    except ValueError:
        # int() refuses thousands of digits, without saying where: look again, slowly.
        value = _parse(text, refused, parse_int=_parse_int(refused))
    if refused:
        _raise_first_refused(value)
    if SURROGATE_ESCAPE.search(text):
        _check_surrogates(value)
    return value


def dumps(value: Any) -> str:
    """Return compact JSON text in which nothing but what must be is escaped.

    RawJSON inside `value` is written as it is. Raises FieldError for NaN, Infinity and
    lone surrogates, wherever the value came from.
    """
    try:
        text: str = ENCODER.encode(value)
    except ValueError as exc:
        raise FieldError("$", "non_finite", "NaN and Infinity are not JSON") from exc
    try:
        text.encode()
    except UnicodeEncodeError:
        _check_surrogates(value)
        raise
    return text


def json_path(path: Path) -> str:
    """Return `("events", 1, "a b")` as `events[1]["a b"]`; the root is `$`."""
    out = ""
    for part in path:
        if isinstance(part, int):
            out += f"[{part}]"
        elif PLAIN_KEY.match(part):
            out += f".{part}" if out else part
        else:
            out += f"[{simplejson.dumps(part)}]"
    return out or "$"


def _decoded(raw: bytes | str) -> str:
    if isinstance(raw, str):
        return raw
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise MalformedJSON(f"The body is not UTF-8: {exc}") from exc


def _parse(
    text: str,
    refused: list[Refused],
    parse_int: Callable[[str], Any] | None = None,
) -> Any:
    def refuse(code: str, detail: str) -> Refused:
        refused.append(Refused(code, detail))
        return refused[-1]

    def parse_float(number: str) -> Decimal | Refused:
        if isinf(float(number)):
            return refuse("non_finite", f"{number[:40]} is larger than a number can be")
        try:
            return Decimal(number)
        except InvalidOperation:
            return refuse("non_finite", f"{number[:40]} cannot be kept as a number")

    def parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | Refused:
        found = dict(pairs)
        if len(found) != len(pairs):
            # Kept as the key's value, so that the walk finds the path to it.
            found[_first_double(pairs)] = refuse(
                "duplicate_key", "this key stands here twice"
            )
        return found

    return simplejson.loads(
        text,
        object_pairs_hook=parse_object,
        parse_float=parse_float,
        parse_int=parse_int,
        parse_constant=lambda name: refuse("non_finite", f"{name} is not JSON"),
        allow_nan=True,  # that is: ask parse_constant, which refuses with a path
    )


def _first_double(pairs: list[tuple[str, Any]]) -> str:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return key
        seen.add(key)
    raise AssertionError("no key stands here twice")


def _parse_int(refused: list[Refused]) -> Callable[[str], int | Refused]:
    def parse(number: str) -> int | Refused:
        try:
            return int(number)
        except ValueError:
            detail = f"an integer of {len(number)} digits is longer than can be kept"
            refused.append(Refused("too_many_digits", detail))
            return refused[-1]

    return parse


def check_depth(text: str, limit: int) -> None:
    """Raise FieldError if the JSON `text` nests deeper than `limit`.

    Looks at brackets alone, before any parser recurses into them.
    """
    if text.count("[") + text.count("{") <= limit:
        return
    depth = 0
    for token in TOKENS.finditer(text):
        match token.group():
            case "[" | "{":
                depth += 1
                if depth > limit:
                    raise FieldError(
                        json_path(_path_at(text, token.start())),
                        "too_deep",
                        f"nested deeper than {limit} levels",
                    )
            case "]" | "}":
                depth -= 1


def _path_at(text: str, end: int) -> Path:
    """The path of the container that opens at `end`, as far as its keys can be read."""
    stack: list[str | int] = []
    open_at: list[str] = []
    key = ""
    for token in TOKENS.finditer(text, 0, end):
        part = token.group()
        if part in "[{":
            if open_at:
                stack.append(key if open_at[-1] == "{" else int(key or 0))
            open_at.append(part)
            key = "" if part == "{" else "0"
        elif part in "]}":
            open_at.pop()
            if open_at:
                key = str(stack.pop())
        elif part == ",":
            if open_at and open_at[-1] == "[":
                key = str(int(key) + 1)
        elif open_at and open_at[-1] == "{" and COLON.match(text, token.end()):
            key = part[1:-1]
    if open_at:
        stack.append(key if open_at[-1] == "{" else int(key or 0))
    return tuple(stack[:12])  # the first keys say where; a hundred would not help


def _walk(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    yield path, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, (*path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _walk(item, (*path, index))


def _raise_first_refused(value: Any) -> None:
    for path, item in _walk(value):
        if isinstance(item, Refused):
            raise FieldError(json_path(path), item.code, item.detail)


def _check_surrogates(value: Any) -> None:
    for path, item in _walk(value):
        texts = (item, *path[-1:]) if isinstance(item, str) else path[-1:]
        for text in texts:
            if isinstance(text, str) and not _is_encodable(text):
                shown = tuple(
                    p if isinstance(p, int) else p.encode(errors="replace").decode()
                    for p in path
                )
                raise FieldError(
                    json_path(shown),
                    "lone_surrogate",
                    "half of a surrogate pair is not text",
                )


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
