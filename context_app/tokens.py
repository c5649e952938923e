"""Counting tokens: by an estimate that needs no network, or by a real tokenizer.

AGENTSTATE_TOKENIZER chooses: `estimate` (default), `tiktoken:o200k_base` (needs the
package tiktoken) or the path of a `tokenizer.json` (needs the package tokenizers).
"""

import re
from collections.abc import Callable
from functools import cache
from math import ceil
from typing import Any

from django.conf import settings

from agentstate import codec
from context_app.errors import TokenizerUnavailable

type Counter = Callable[[str], int]

# What a provider adds around a message: role and separators.
MESSAGE_TOKENS = 4
# Providers count images by their size, which a reference does not tell: the most that
# a large one costs with any of them.
IMAGE_TOKENS = 1600
IMAGE_KINDS = {"image", "image_url", "input_image"}
MEDIA_BYTES = 20  # of base64 that make about one token of sound or a document
MEDIA_KINDS = IMAGE_KINDS | {"input_audio", "file", "input_file", "document"}

# Pieces about as long as tokens are, or shorter: six letters of a word with the space
# before it, three digits, two capitals, one sign.
PIECE = re.compile(
    r" ?[A-Z]?[a-z]{1,6}|[A-Z]{1,2}|[0-9]{1,3}|[ \t]{1,16}|\s|[^\sA-Za-z0-9]"
)
# No words: keys, hashes, base64. Tokenizers make a token of one or two characters.
DATA = re.compile(r"[A-Za-z0-9+]{20,}")
DATA_TOKENS = 0.8  # for each character
WIDE = re.compile(r"[\u0800-\U0010ffff]")
ASTRAL = re.compile(r"[\U00010000-\U0010ffff]")


def estimate(text: str) -> int:
    """Return at least as many tokens as common tokenizers make of a text.

    English comes out a quarter too high, JSON a half, other scripts more: a letter
    beyond U+0800 counts as two, an emoji as three. docs/context.md has the figures.
    """
    data = sum(map(len, DATA.findall(text)))
    if data:
        text = DATA.sub("", text)
    wide = len(WIDE.findall(text)) + len(ASTRAL.findall(text))
    return len(PIECE.findall(text)) + wide + ceil(data * DATA_TOKENS)


def configured_counter() -> Counter:
    """Return the counter that the settings name. Raises TokenizerUnavailable."""
    return _load(settings.TOKENIZER)


@cache
def _load(name: str) -> Counter:
    if name == "estimate":
        return estimate
    try:
        return _tiktoken(name) if name.startswith("tiktoken:") else _from_file(name)
    except Exception as exc:  # whatever a package of others raises while it loads
        raise TokenizerUnavailable(f"{name}: {exc}") from exc


def _tiktoken(name: str) -> Counter:
    from importlib import import_module

    encoding = import_module("tiktoken").get_encoding(name.partition(":")[2])
    return lambda text: len(encoding.encode_ordinary(text))


def _from_file(path: str) -> Counter:
    from importlib import import_module

    tokenizer = import_module("tokenizers").Tokenizer.from_file(path)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def remembering(counter: Counter) -> Counter:
    """Return `counter` with a memory, for one request that counts texts repeatedly."""
    known: dict[str, int] = {}

    def count(text: str) -> int:
        found = known.get(text)
        if found is None:
            found = known[text] = counter(text)
        return found

    return count


def count_messages(messages: Any, count: Counter) -> int:
    """Return the tokens of rendered messages, or of one text."""
    if isinstance(messages, str):
        return MESSAGE_TOKENS + count(messages)
    return sum(MESSAGE_TOKENS + count_value(message, count) for message in messages)


def count_value(value: Any, count: Counter) -> int:
    """Count every text in a message. Names of fields are the provider's, not counted,
    except in the arguments of a call."""
    if isinstance(value, str):
        return count(value)
    if isinstance(value, list):
        return sum(count_value(item, count) for item in value)
    if isinstance(value, dict):
        if value.get("type") in MEDIA_KINDS:
            return _media_tokens(value)
        return sum(
            count(codec.dumps(item))
            if name in ("input", "arguments") and not isinstance(item, str)
            else count_value(item, count)
            for name, item in value.items()
        )
    return 0 if value is None else 1


def _media_tokens(part: dict[str, Any]) -> int:
    """Images by the most they cost; other media by their length."""
    if part["type"] in IMAGE_KINDS:
        return IMAGE_TOKENS
    return max(IMAGE_TOKENS, len(codec.dumps(part)) // MEDIA_BYTES)
