"""Embedders other than the packaged one: over HTTP, and an ONNX model in a folder."""

import json
import threading

import numpy as np
import pytest

from memory_app.embedding import embedders, vectors
from memory_app.embedding.reembed import embed_missing, projects_to_embed
from memory_app.models import EmbeddingModel, FactEmbedding
from memory_app.recall import wide
from tests.memory_app.calls import facts, recall, remember, texts
from tests.memory_app.endpoints import serving
from tests.memory_app.onnx_model import write_model

MODEL = "openai:tiny"
# What the endpoint's model knows: words of one meaning have one direction.
MEANINGS = {
    "tea": 0, "brew": 0, "oolong": 0, "car": 1, "vehicle": 1, "drives": 1,
    "invoices": 2, "bills": 2,
}  # fmt: skip


class TinyModel:
    """An embeddings endpoint; `size` is how long its vectors are at the moment."""

    size = 8

    def __call__(self, path, body):
        assert path == "/v1/embeddings"
        data = [
            {"object": "embedding", "index": index, "embedding": self.vector(text)}
            for index, text in enumerate(body["input"])
        ]
        # In any order, as the protocol allows.
        return 200, json.dumps({"object": "list", "data": data[::-1]}).encode()

    def vector(self, text):
        vector = [0.01] * self.size
        for word in text.lower().split():
            if word in MEANINGS:
                vector[MEANINGS[word]] += 2.0
        return vector


@pytest.fixture
def endpoint(settings):
    """The configured embedder, over HTTP; `endpoint.reply` may be exchanged."""
    forget_models()
    with serving(TinyModel()) as server:
        settings.EMBEDDER, settings.EMBEDDER_URL = MODEL, server.url
        settings.EMBEDDER_KEY, settings.EMBEDDER_TIMEOUT = "sk-test", 60
        yield server
    forget_models()


def forget_models():
    embedders.embedder_of.cache_clear()
    vectors.forget_dimensions()


def answer(api, q, call="recall", **params):
    found = api.get(f"/api/v1/memory/{call}", params={"q": q, **params})
    assert found.status_code == 200, found
    return found.json


def test_a_remote_embedder_finds_by_meaning(api, project, endpoint):
    remember(api, "Likes oolong")
    remember(api, "Drives to work")
    assert endpoint.asked == [], "no call to others while a row is locked"
    early = answer(api, "brew", subject="u-100")
    assert len(early["items"]) == 2
    assert early["degraded"] == "2 facts have no vector yet and are found by words"
    assert embed_missing(project.id) == (2, 0, "")
    found = answer(api, "brew", subject="u-100")
    assert texts(found["items"])[0] == "Likes oolong"
    assert found["model"] == MODEL and found["degraded"] == ""
    assert found["items"][0]["why"]["parts"]["vector"] > 0.5
    assert endpoint.asked[-1] == {"model": "tiny", "input": ["brew"]}
    assert endpoint.headers[-1]["Authorization"] == "Bearer sk-test"
    wide_ = answer(api, "bills vehicle", "search")
    assert texts(wide_["items"])[0] == "Drives to work"


BAD_ANSWERS = {
    "an error": (500, b"oops"),
    "too many": (429, b"{}"),
    "no JSON": (200, b"<html>"),
    "no list": (200, b'{"data": 5}'),
    "nothing": (200, b'{"data": []}'),
    "words": (200, b'{"data": [{"index": 0, "embedding": ["a", "b"]}]}'),
    "no numbers": (200, b'{"data": [{"index": 0, "embedding": [NaN, 1]}]}'),
    "empty": (200, b'{"data": [{"index": 0, "embedding": []}]}'),
    "nested": (200, b'{"data": [{"index": 0, "embedding": [[1, 2], [3, 4]]}]}'),
    "endless": (200, b'{"data": "' + b"x" * 70_000_000 + b'"}'),
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_a_bad_answer_leaves_the_words(api, project, endpoint, name):
    remember(api, "Likes oolong")
    endpoint.reply = lambda path, body: BAD_ANSWERS[name]
    report = embed_missing(project.id)
    assert (report.done, report.failed) == (0, 1) and report.error
    assert "oolong" not in report.error
    assert facts(api)[0]["embedding"] == report.error
    assert not FactEmbedding.objects.filter(project_id=project.id).exists()
    for found in (
        answer(api, "oolong", subject="u-100"),
        answer(api, "oolong", "search"),
    ):
        assert texts(found["items"]) == ["Likes oolong"]
        assert found["degraded"].startswith("found by words alone: ")
    # It is tried again by the sweep, and then it is as if nothing had been.
    endpoint.reply = TinyModel()
    assert project.id in projects_to_embed()
    assert embed_missing(project.id) == (1, 0, "")
    assert facts(api)[0]["embedding"] == "ok"
    assert answer(api, "brew", subject="u-100")["degraded"] == ""


def test_a_slow_embedder_delays_nobody_else(api, project, endpoint, settings):
    """Its wait has an end, also for one that trickles; others do not wait with it."""
    remember(api, "Likes oolong")
    embed_missing(project.id)
    endpoint.gate.clear()
    settings.EMBEDDER_TIMEOUT = 60
    found = []
    waits = threading.Thread(
        target=lambda: found.append(answer(api, "brew", subject="u-100"))
    )
    waits.start()
    for _ in range(2):  # the embedding of the fact, and now the query's
        assert endpoint.waiting.acquire(timeout=30)
    assert texts(recall(api, "oolong", mode="text")) == ["Likes oolong"]
    assert waits.is_alive()
    endpoint.gate.set()
    waits.join(60)
    assert found[0]["degraded"] == ""
    endpoint.gate.clear()
    settings.EMBEDDER_TIMEOUT = 0.2
    late = answer(api, "brew", subject="u-100")
    assert texts(late["items"]) == ["Likes oolong"]
    assert late["degraded"].startswith("found by words alone: ")


def test_an_embedder_that_is_not_there(api, project, settings):
    forget_models()
    settings.EMBEDDER, settings.EMBEDDER_URL = MODEL, "http://127.0.0.1:9/v1"
    remember(api, "Likes oolong")
    assert embed_missing(project.id).error.endswith("ConnectError")
    assert texts(recall(api, "oolong")) == ["Likes oolong"]
    forget_models()


def test_another_length_under_the_same_name_is_a_clear_error(api, project, endpoint):
    """The endpoint exchanged its model: nothing is compared across lengths."""
    remember(api, "Likes oolong")
    embed_missing(project.id)
    endpoint.reply.size = 12
    for call in ({"subject": "u-100"}, {"call": "search"}):
        found = answer(api, "oolong", **call)
        assert "another length" in found["degraded"]
        assert texts(found["items"]) == ["Likes oolong"]
    remember(api, "Drives a car")
    report = embed_missing(project.id)
    assert (report.done, report.failed) == (0, 1)
    assert "12 dimensions" in report.error and "8" in report.error
    assert texts(recall(api, "car", mode="text")) == ["Drives a car"]


def test_a_new_model_serves_a_search_when_it_has_all(api, project, endpoint, settings):
    """Over the whole project too: half of the vectors would hide the other half."""
    for drink in ("oolong", "brew"):
        remember(api, f"Likes {drink}", subject=drink)
    embed_missing(project.id)
    settings.EMBEDDER = "openai:other"
    remember(api, "Drives a car", subject="car")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wide, "EXACT_ROWS", 0)
        assert answer(api, "tea", "search")["model"] == MODEL
        assert embed_missing(project.id).done == 3
        found = answer(api, "tea", "search")
    assert found["model"] == "openai:other"
    assert set(texts(found["items"])[:2]) == {"Likes oolong", "Likes brew"}


def test_back_to_the_model_before_is_a_change_too(api, project, endpoint, settings):
    """What was written meanwhile has no vector of it."""
    remember(api, "Likes oolong")
    embed_missing(project.id)
    settings.EMBEDDER = "openai:other"
    remember(api, "Drives a car")
    settings.EMBEDDER = MODEL
    assert project.id in projects_to_embed()
    assert embed_missing(project.id).done == 1
    models = EmbeddingModel.objects.filter(project_id=project.id)
    assert [m.model for m in models] == [MODEL]
    assert answer(api, "vehicle", subject="u-100")["degraded"] == ""


def test_an_onnx_model_in_a_folder(api, project, settings, tmp_path):
    forget_models()
    write_model(tmp_path, MEANINGS, size=6)
    settings.EMBEDDER = f"onnx:{tmp_path}"
    remember(api, "Likes oolong")
    remember(api, "Drives a car")
    stored = FactEmbedding.objects.filter(project_id=project.id)
    assert stored.count() == 2, "a local model embeds with the fact"
    found = answer(api, "brew", subject="u-100", mode="vector")
    assert texts(found["items"]) == ["Likes oolong", "Drives a car"]
    assert found["model"] == f"onnx:{tmp_path}" and found["degraded"] == ""
    # By hand: the mean of the words' rows, padding left out.
    one, two = embedders.embed_texts(settings.EMBEDDER, ["tea", "tea car invoices"])
    assert one == pytest.approx(np.eye(6)[0], abs=1e-6)
    assert two[:3] == pytest.approx(np.full(3, 3**-0.5), abs=1e-6)
    forget_models()


@pytest.mark.parametrize("missing", ["model.onnx", "tokenizer.json", "all"])
def test_a_folder_without_a_model_is_told(api, project, settings, tmp_path, missing):
    forget_models()
    write_model(tmp_path, MEANINGS, size=6)
    for path in list(tmp_path.iterdir()):
        if missing in (path.name, "all"):
            path.unlink()
    settings.EMBEDDER = f"onnx:{tmp_path}"
    remember(api, "Likes oolong")
    report = embed_missing(project.id)
    assert report.failed == 1 and str(tmp_path) in report.error
    assert facts(api)[0]["embedding"] == report.error
    found = answer(api, "oolong", subject="u-100")
    assert texts(found["items"]) == ["Likes oolong"]
    assert found["degraded"].startswith("found by words alone: ")
    forget_models()
