"""The decoder gives the same messages wherever the stream is cut into chunks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentstate_client.sse import Decoder, Message

STREAM = (
    ': welcome\n\nid: 1\nevent: message.user\ndata: {"a":\ndata: 1}\n\n'
    "id:2\r\ndata: née\r\n\r\nid: 3\rdata: x\r\r: idle\n\nretry: 10\n\ndata: tail"
).encode()
MESSAGES = [
    Message("message.user", '{"a":\n1}', "1"),
    Message("message", "née", "2"),
    Message("message", "x", "3"),
]


def decode(chunks):
    decoder = Decoder()
    return [message for chunk in chunks for message in decoder.feed(chunk)]


def test_decodes_a_whole_stream_and_drops_the_unfinished_end():
    assert decode([STREAM]) == MESSAGES


def test_decodes_byte_by_byte():
    assert decode([bytes([byte]) for byte in STREAM]) == MESSAGES


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_decodes_the_same_however_it_is_cut(cuts):
    edges = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    assert decode(chunks) == MESSAGES


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_a_long_line_in_many_chunks_is_one_message(end):
    text = b"x" * 1_000_000
    chunks = [text[i : i + 1000] for i in range(0, len(text), 1000)]
    found = decode([b"id: 1", end, b"data: ", *chunks, end, end, b":"])
    assert [(m.id, len(m.data)) for m in found] == [("1", 1_000_000)]
