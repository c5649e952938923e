"""JSON Patch (RFC 6902), Merge Patch (RFC 7396), and the patch between two values.

State changes are stored as patches, so what `apply_patch` makes of the log must be what
the live row holds: `write_state` therefore stores `apply_patch(old, diff(old, new))`.
"""

from decimal import Decimal
from itertools import pairwise
from typing import Any

from django.conf import settings

from agentstate.codec import json_path
from agentstate.errors import AppError, FieldError

type Operation = dict[str, Any]
type Patch = list[Operation]

NUMBERS = (int, Decimal, float)
# An array is spelt anew where that is shorter, once this many of its items differ; or
# where so many would each have to move the rest of a long one.
FEW_CHANGES, MANY_CHANGES = 16, 1000
OPERATION_LENGTH = 36  # of `{"op":"replace","path":"","value":}`
COPIED_VALUES_MAX = 1_000_000  # by one patch: copies of copies double each time
# What one patch may move about, in values looked at. To shift an item of an array is
# cheaper by far; what `diff` makes of the largest state stays within it.
MOVED_VALUES_MAX, SHIFTS_A_VALUE = 10_000_000, 512


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
    draft = _Draft(value)
    for index, operation in enumerate(patch):
        draft.apply(operation, index)
    return draft.value


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
    changes = max(len(gone), len(come))
    if changes > FEW_CHANGES and (
        (end and changes > MANY_CHANGES)
        or not _is_longer_than(
            changes * (OPERATION_LENGTH + len(path)),
            new[:start] + new[-end or len(new) :],
        )
    ):
        # Spelt item by item it would be longer than the array itself.
        return [{"op": "replace", "path": path, "value": new}]
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


def _is_longer_than(length: int, values: list[Any]) -> bool:
    """Whether `values`, as JSON text, are longer than `length`; looks no further."""
    waiting = list(reversed(values))
    while waiting and length >= 0:
        value = waiting.pop()
        length -= 2
        if isinstance(value, str):
            length -= len(value)
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.keys()
            waiting += value.values()
    return length < 0


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


class _Draft:
    """A value while a patch is applied to it; the value it began as stays as it was.

    A container is copied when it is first changed and belongs to the draft from then
    on, so that a thousand changes of one array do not copy it a thousand times.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self.own: dict[int, Any] = {}
        self.room = COPIED_VALUES_MAX
        self.moves_left = MOVED_VALUES_MAX

    def apply(self, operation: Operation, index: int) -> None:
        if not isinstance(operation, dict):
            raise FieldError(
                json_path(("patch", index)), "invalid", "must be an object"
            )
        op = operation.get("op")
        path = _tokens(operation, "path", index)
        match op:
            case "add" | "replace" | "test":
                if "value" not in operation:
                    raise _bad_operation(index, "value", "is required")
                item = operation["value"]
                if op != "test":
                    self.check_depth(path, item, index)
                    self.put(path, item, index, must_exist=op == "replace")
                elif not same_value(_get(self.value, path, index), item):
                    raise _failed(index, "the value tested is another")
            case "remove":
                self.remove(path, index)
            case "move" | "copy":
                self.take(op, _tokens(operation, "from", index), path, index)
            case _:
                raise _bad_operation(index, "op", "is not an operation of JSON Patch")

    def take(self, op: str, source: list[str], path: list[str], index: int) -> None:
        item = _get(self.value, source, index)
        if op == "copy":
            self.check_depth(path, copied := self._cloned(item, index), index)
            self.put(path, copied, index, must_exist=False)
        elif path != source:
            if path[: len(source)] == source:
                raise _failed(index, "a value cannot move into itself")
            self.remove(source, index)
            if len(path) > len(source):  # no higher, it fits where it comes from
                self.check_depth(path, item, index, moved=True)
            self.put(path, item, index, must_exist=False)

    def check_depth(
        self, path: list[str], item: Any, index: int, *, moved: bool = False
    ) -> None:
        depth, looked_at = _depth(item)
        if moved:  # what is added or copied is limited where it comes from
            self.spend(looked_at, index)
        if len(path) + depth > settings.JSON_MAX_DEPTH:
            limit = settings.JSON_MAX_DEPTH
            raise FieldError(
                json_path(("patch", index)),
                "too_deep",
                f"would nest the value deeper than {limit} levels",
            )

    def spend(self, values: int, index: int) -> None:
        self.moves_left -= values
        if self.moves_left < 0:
            raise _failed(index, "the patch moves too much")

    def put(self, path: list[str], item: Any, index: int, *, must_exist: bool) -> None:
        if not path:
            self.value = item
            return
        parent, token = self._parent(path, index)
        if isinstance(parent, dict):
            if must_exist and token not in parent:
                raise _failed(index, f"there is no member {token!r}")
            parent[token] = item
        elif must_exist:
            parent[_position(parent, token, index)] = item
        else:
            position = _position(parent, token, index, past_end=True)
            self.spend((len(parent) - position) // SHIFTS_A_VALUE, index)
            parent.insert(position, item)

    def remove(self, path: list[str], index: int) -> None:
        if not path:
            self.value = None
            return
        parent, token = self._parent(path, index)
        if isinstance(parent, list):
            position = _position(parent, token, index)
            self.spend((len(parent) - position) // SHIFTS_A_VALUE, index)
            del parent[position]
        elif token in parent:
            del parent[token]
        else:
            raise _failed(index, f"there is no member {token!r}")

    def _parent(self, path: list[str], index: int) -> tuple[Any, str]:
        """The draft's own container that `path` ends in, and the place there."""
        _get(self.value, path[:-1], index)  # fails before anything is copied
        self.value = here = self._owned(self.value, path[0], index)
        for token, following in pairwise(path):
            at = _position(here, token, index) if isinstance(here, list) else token
            here[at] = here = self._owned(here[at], following, index)
        return here, path[-1]

    def _owned(self, value: Any, token: str, index: int) -> Any:
        if not isinstance(value, dict | list):
            raise _failed(index, f"{token!r} is not in an object or array")
        if id(value) in self.own:
            return value
        copy = value.copy()
        self.own[id(copy)] = copy
        return copy

    def _cloned(self, value: Any, index: int) -> Any:
        self.room -= 1
        if self.room < 0:
            raise _failed(index, "the patch copies too much")
        if isinstance(value, dict):
            return {key: self._cloned(item, index) for key, item in value.items()}
        if isinstance(value, list):
            return [self._cloned(item, index) for item in value]
        return value


def _depth(value: Any) -> tuple[int, int]:
    """How deep `value` nests, and how many values that took to see."""
    depth, looked_at, level = 0, 1, [value]
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        level = [
            item
            for each in level
            for item in (each.values() if isinstance(each, dict) else each)
        ]
        looked_at += len(level)
    return depth, looked_at


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
