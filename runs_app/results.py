"""What a step is done with, however it got there: its size, and its digest."""

import hashlib
from typing import Any

from django.conf import settings

from agentstate import codec
from runs_app.errors import ResultTooLarge


def result_text(path: codec.Path, result: Any) -> tuple[str, bytes]:
    """Return a result's JSON text and digest. Raises ResultTooLarge."""
    text = checked_text(path, result)
    return text, result_hash(result, text)


def checked_text(path: codec.Path, value: Any) -> str:
    """Return the JSON text of what goes from run to run. Raises ResultTooLarge."""
    text = codec.dumps(value)
    size, limit = len(text.encode()), settings.STEP_RESULT_MAX_BYTES
    if size > limit:
        raise ResultTooLarge(codec.json_path(path), size, limit)
    return text


def result_hash(value: Any, text: str | None = None) -> bytes:
    """A digest that equal JSON values share, however their keys are ordered.

    `text` is the value's, where it is there already.
    """
    if text is None or "{" in text:
        text = codec.dumps(_sorted(value))
    return hashlib.sha256(text.encode()).digest()


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    return value
