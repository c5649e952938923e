"""JSON Patch (RFC 6902), Merge Patch (RFC 7396), and the patch between two values.

State changes are stored as patches, so what `apply_patch` makes of the log must be what
the live row holds: `write_state` therefore stores `apply_patch(old, diff(old, new))`.
"""

from decimal import Decimal
from typing import Any

from agentstate.codec import json_path
from agentstate.errors import AppError, FieldError

type Operation = dict[str, Any]
type Patch = list[Operation]

NUMBERS = (int, Decimal, float)


class PatchFailed(AppError):
    """The patch does not fit the value it was to change."""

    code, status = "patch_failed", 409


def diff(old: Any, new: Any) -> Patch:
    """Return the operations (add, remove, replace) that turn `old` into `new`.

    Values that are written differently differ, so `1` to `1.0` is a change.
    """
    return list(_diff(old, new, ""))


def apply_patch(value: Any, patch: Patch) -> Any:
    """Return `value` changed by `patch`; `value` itself is left as it was.

    Raises PatchFailed if a path is not there or a `test` fails, FieldError if an
    operation is malformed. All or nothing.
    """
    for index, operation in enumerate(patch):
        value = _apply(value, operation, index)
    return value


def merge_patch(value: Any, patch: Any) -> Any:
    """Return `value` with `patch` merged in: null removes a member (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(value) if isinstance(value, dict) else {}
    for key, item in patch.items():
        if item is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), item)
    return merged


def changed_paths(patch: Patch) -> list[str]:
    """Return the JSON pointers that `patch` writes to, each once, in order."""
    return list(dict.fromkeys(operation["path"] for operation in patch))


def same_value(a: Any, b: Any) -> bool:
    """Whether two JSON values are equal as JSON: 1 is 1.0, and neither is true."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, NUMBERS) and isinstance(b, NUMBERS):
        return a == b
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_value(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same_value, a, b))
    return bool(a == b)


def _same_writing(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, Decimal):
        return str(a) == str(b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same_writing(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(_same_writing, a, b))
    return bool(a == b)


def _diff(old: Any, new: Any, path: str) -> Patch:
    if isinstance(old, dict) and isinstance(new, dict):
        return _diff_objects(old, new, path)
    if isinstance(old, list) and isinstance(new, list):
        return _diff_arrays(old, new, path)
    if _same_writing(old, new):
        return []
    return [{"op": "replace", "path": path, "value": new}]


def _diff_objects(old: dict[str, Any], new: dict[str, Any], path: str) -> Patch:
    patch: Patch = [
        {"op": "remove", "path": f"{path}/{_escape(key)}"}
        for key in old
        if key not in new
    ]
    for key, item in new.items():
        here = f"{path}/{_escape(key)}"
        if key in old:
            patch += _diff(old[key], item, here)
        else:
            patch.append({"op": "add", "path": here, "value": item})
    return patch


def _diff_arrays(old: list[Any], new: list[Any], path: str) -> Patch:
    """What the two share at the start and at the end stays; between, item by item."""
    start = 0
    while start < min(len(old), len(new)) and _same_writing(old[start], new[start]):
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and _same_writing(
        old[-1 - end], new[-1 - end]
    ):
        end += 1
    gone, come = old[start : len(old) - end], new[start : len(new) - end]
    both = min(len(gone), len(come))
    patch: Patch = []
    for offset in range(both):
        patch += _diff(gone[offset], come[offset], f"{path}/{start + offset}")
    patch += [
        {"op": "remove", "path": f"{path}/{start + offset}"}
        for offset in reversed(range(both, len(gone)))
    ]
    patch += [
        {"op": "add", "path": f"{path}/{start + offset}", "value": come[offset]}
        for offset in range(both, len(come))
    ]
    return patch


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _tokens(operation: Operation, field: str, index: int) -> list[str]:
    pointer = operation.get(field)
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise _bad_operation(index, field, 'must be a JSON pointer such as "/a/0"')
    return [
        token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:]
    ]


def _bad_operation(index: int, field: str, detail: str) -> FieldError:
    return FieldError(json_path(("patch", index, field)), "invalid", detail)


def _apply(value: Any, operation: Operation, index: int) -> Any:
    if not isinstance(operation, dict):
        raise FieldError(json_path(("patch", index)), "invalid", "must be an object")
    op = operation.get("op")
    path = _tokens(operation, "path", index)
    match op:
        case "add" | "replace" | "test":
            if "value" not in operation:
                raise _bad_operation(index, "value", "is required")
            new = operation["value"]
            if op == "test":
                if not same_value(_get(value, path, index), new):
                    raise _failed(index, "the value tested is another")
                return value
            return _put(value, path, new, index, must_exist=op == "replace")
        case "remove":
            return _remove(value, path, index)
        case "move" | "copy":
            source = _tokens(operation, "from", index)
            item = _get(value, source, index)
            if op == "move":
                if path[: len(source)] == source and path != source:
                    raise _failed(index, "a value cannot move into itself")
                value = _remove(value, source, index)
            return _put(value, path, item, index, must_exist=False)
    raise _bad_operation(index, "op", "is not an operation of JSON Patch")


def _failed(index: int, detail: str) -> PatchFailed:
    return PatchFailed(f"patch[{index}]: {detail}", operation=index)


def _position(
    items: list[Any], token: str, index: int, *, past_end: bool = False
) -> int:
    if token == "-" and past_end:
        return len(items)
    # RFC 6901: no leading zeros, ASCII digits only.
    if not (token.isascii() and token.isdigit()) or (token[0] == "0" and token != "0"):
        raise _failed(index, f"{token!r} is no position in an array")
    if len(token) > 9 or int(token) >= len(items) + past_end:
        raise _failed(index, f"the array has no position {token[:20]}")
    return int(token)


def _get(value: Any, path: list[str], index: int) -> Any:
    for token in path:
        if isinstance(value, dict) and token in value:
            value = value[token]
        elif isinstance(value, list):
            value = value[_position(value, token, index)]
        else:
            raise _failed(index, f"there is no member {token!r}")
    return value


def _put(value: Any, path: list[str], new: Any, index: int, *, must_exist: bool) -> Any:
    if not path:
        return new
    token, rest = path[0], path[1:]
    if isinstance(value, dict):
        if token not in value and (rest or must_exist):
            raise _failed(index, f"there is no member {token!r}")
        put = _put(value.get(token), rest, new, index, must_exist=must_exist)
        return {**value, token: put}
    if isinstance(value, list):
        inserts = not rest and not must_exist
        at = _position(value, token, index, past_end=inserts)
        if inserts:
            return [*value[:at], new, *value[at:]]
        put = _put(value[at], rest, new, index, must_exist=must_exist)
        return [*value[:at], put, *value[at + 1 :]]
    raise _failed(index, f"{token!r} is not in an object or array")


def _remove(value: Any, path: list[str], index: int) -> Any:
    if not path:
        return None
    token, rest = path[0], path[1:]
    if isinstance(value, dict) and token in value:
        if rest:
            return {**value, token: _remove(value[token], rest, index)}
        return {key: item for key, item in value.items() if key != token}
    if isinstance(value, list):
        at = _position(value, token, index)
        kept = [_remove(value[at], rest, index)] if rest else []
        return [*value[:at], *kept, *value[at + 1 :]]
    raise _failed(index, f"there is no member {token!r}")
