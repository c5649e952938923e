"""A real ONNX model of a few hundred bytes: looks up a row for each word, no more.

Written here byte by byte, in the form of protocol buffers that onnx.proto gives, so
that neither a download nor the onnx package is needed.
"""

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace

FLOAT, INT64 = 1, 7


def write_model(folder, meanings, *, size):
    """Write model.onnx and tokenizer.json: the words of `meanings`, axis by axis."""
    words = ["[PAD]", "[UNK]", *meanings]
    table = np.zeros((len(words), size), dtype=np.float32)
    table[0] = 9  # of padding, which must not count
    for word, axis in meanings.items():
        table[words.index(word), axis] = 1
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "model.onnx").write_bytes(_model(table))


def _model(table):
    gather = (
        _text(1, "table") + _text(1, "input_ids") + _text(2, "last_hidden_state")
        + _text(4, "Gather")
    )  # fmt: skip
    initializer = (
        _number(1, table.shape[0]) + _number(1, table.shape[1]) + _number(2, FLOAT)
        + _text(8, "table") + _field(9, table.astype("<f4").tobytes())
    )  # fmt: skip
    graph = (
        _field(1, gather) + _text(2, "lookup") + _field(5, initializer)
        + _field(11, _value("input_ids", INT64, ["batch", "length"]))
        + _field(11, _value("attention_mask", INT64, ["batch", "length"]))
        + _field(12, _value("last_hidden_state", FLOAT, ["batch", "length", "size"]))
    )  # fmt: skip
    opset = _text(1, "") + _number(2, 13)
    return _number(1, 8) + _field(7, graph) + _field(8, opset)


def _value(name, kind, dimensions):
    shape = b"".join(_field(1, _text(2, name)) for name in dimensions)
    tensor = _number(1, kind) + _field(2, shape)
    return _text(1, name) + _field(2, _field(1, tensor))


def _number(field, value):
    return _varint(field << 3) + _varint(value)


def _field(field, raw):
    return _varint(field << 3 | 2) + _varint(len(raw)) + raw


def _text(field, text):
    return _field(field, text.encode())


def _varint(value):
    raw = bytearray()
    while value > 0x7F:
        raw.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*raw, value])
