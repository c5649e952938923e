"""agentstate.codec: a JSON value comes back equal, or is refused with its path."""

import json
import time
from decimal import Decimal

import pytest
import simplejson
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentstate import codec
from agentstate.errors import AppError, FieldError
from sessions_app.services import SessionFields, create_session
from tests.fixtures import make_project
from tests.json_values import OBJECTS, VALUES, written


@pytest.fixture(scope="module")
def lasting_project(database):
    """One for all examples of a property."""
    return make_project()


def refused(raw, **options):
    """The error item that `raw` is refused with."""
    with pytest.raises(FieldError) as caught:
        codec.loads(raw, **options)
    assert caught.value.status == 422
    return caught.value.extra["errors"][0]


@given(VALUES)
@example(
    {
        "nul": "head\0tail",
        "\0": "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    }
)
def test_what_is_written_is_read_back_the_same(value):
    assert written(codec.loads(codec.dumps(value))) == written(value)


@given(VALUES)
def test_other_writers_of_json_are_read_the_same(value):
    """Escaped to ASCII, indented: the same value."""
    text = simplejson.dumps(value, use_decimal=True, indent=2, ensure_ascii=True)
    assert written(codec.loads(text.encode())) == written(value)


@given(VALUES)
def test_what_is_written_is_plain_json_to_others(value):
    json.loads(codec.dumps(value))


@settings(max_examples=40)
@given(OBJECTS)
def test_a_column_gives_back_what_it_was_given(lasting_project, value):
    fields = SessionFields(metadata=value)
    session, _ = create_session(lasting_project.id, fields)
    assert written(session.metadata) == written(value)
    assert list(session.metadata) == list(value)  # the order of keys too


@given(
    st.binary(max_size=60)
    | st.text(max_size=60).map(lambda t: t.encode(errors="surrogatepass"))
    | st.text('[]{}",:\\u0eE+-.1dD8truefalsn ', max_size=40).map(str.encode)
)
def test_whatever_comes_is_a_value_or_a_clear_refusal(raw):
    try:
        value = codec.loads(raw)
    except AppError as error:
        assert error.status in (400, 422)
    else:
        assert written(codec.loads(codec.dumps(value))) == written(value)


@pytest.mark.parametrize("token", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
@pytest.mark.parametrize(
    ("template", "path"),
    [
        ("{}", "$"),
        ('{{"a": {}}}', "a"),
        ('{{"a": [0, {{"b c": {}}}]}}', 'a[1]["b c"]'),
        ("[[], {}]", "[1]"),
    ],
)
def test_numbers_that_are_not_finite_are_refused(token, template, path):
    error = refused(template.format(token))
    assert (error["path"], error["code"]) == (path, "non_finite")


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), Decimal("NaN"), Decimal("inf")]
)
def test_the_server_itself_cannot_write_what_is_not_finite(value):
    with pytest.raises(FieldError) as caught:
        codec.dumps({"avg": value})
    assert caught.value.extra["errors"][0]["code"] == "non_finite"


def test_numbers_keep_their_digits():
    text = (
        "[9007199254740993,184467440737095516150,0.1000,1e5,-0.0,"
        "123456789.12345678901234567890,1E-400]"
    )
    assert codec.loads(text) == [
        9007199254740993,
        184467440737095516150,
        Decimal("0.1"),
        Decimal("1E+5"),
        0,
        Decimal("123456789.12345678901234567890"),
        Decimal("1E-400"),
    ]
    assert codec.dumps(codec.loads(text)) == text.replace("1e5", "1E+5")


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ('{"a":1,"a":2}', "a"),
        ('{"x":[{"a":1,"b":{"c":null,"d":0,"c":null}}]}', "x[0].b.c"),
        ('[{"":1,"":1}]', '[0][""]'),
        ('{"a":1,"\\u0061":2}', "a"),
    ],
)
def test_a_key_that_stands_twice_is_refused(raw, path):
    error = refused(raw)
    assert (error["path"], error["code"]) == (path, "duplicate_key")


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ('"\\ud800"', "$"),
        ('{"a":["ok","\\udfff tail"]}', "a[1]"),
        ('{"a":{"\\uD83D":1}}', 'a["?"]'),
        ('["\\ud83d\\ud83d\\ude00"]', "[0]"),
    ],
)
def test_half_of_a_surrogate_pair_is_refused(raw, path):
    error = refused(raw)
    assert (error["path"], error["code"]) == (path, "lone_surrogate")


def test_a_byte_order_mark_is_skipped():
    assert codec.loads(b'\xef\xbb\xbf{"a":1}') == {"a": 1}


def test_a_surrogate_pair_is_one_character():
    assert codec.loads('"\\ud83d\\ude00"') == "\U0001f600"


@pytest.mark.parametrize("depth", [1, 60, 100])
def test_nesting_up_to_the_limit_is_kept(depth):
    raw = "[" * depth + "0" + "]" * depth
    assert codec.dumps(codec.loads(raw)) == raw


@pytest.mark.parametrize("depth", [101, 5000, 100_000])
@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
def test_deeper_nesting_is_refused_at_once(depth, opening):
    closing = opening[::-1].translate({ord("["): "]", ord("{"): "}"})
    closing = "".join(c for c in closing if c in "]}")
    started = time.thread_time()
    error = refused(opening * depth + "0" + closing * depth)
    assert time.thread_time() - started < 1
    assert error["code"] == "too_deep"
    assert "100" in error["detail"]


def test_brackets_in_strings_are_no_nesting():
    text = "[" * 500 + '{"\\'
    assert codec.loads(codec.dumps({"a": text})) == {"a": text}


def test_the_path_to_what_is_too_deep_begins_at_the_root():
    error = refused('{"events":[{"id":1},{"payload":{"x":[[[1]]]}}]}', max_depth=5)
    assert error["path"] == "events[1].payload.x[0]"


def test_an_integer_of_five_thousand_digits_is_refused_with_its_path():
    started = time.thread_time()
    error = refused('{"a":[1,' + "7" * 5000 + "]}")
    assert time.thread_time() - started < 1
    assert (error["path"], error["code"]) == ("a[1]", "too_many_digits")


def test_an_integer_of_four_thousand_digits_is_kept():
    digits = "7" * 4000
    assert codec.dumps(codec.loads(digits)) == digits


HOSTILE = {
    "a string that never ends": '"' + '\\"' * 200_000 + "[" * 101,
    "many keys, then too deep": "{"
    + "".join(f'"k{n}":0,' for n in range(100_000))
    + '"x":'
    + "[" * 101
    + "0"
    + "]" * 101
    + "}",
    "many keys, the last one twice": "{"
    + "".join(f'"k{n}":0,' for n in range(100_000))
    + '"k99999":0}',
    "many refused numbers": "[" + ",".join(["1e999"] * 50_000) + "]",
    "many long integers": "[" + ",".join(["7" * 4301] * 500) + "]",
    "a decimal of a million digits": "0." + "7" * 1_000_000,
    "an exponent of a million digits": "1e-" + "9" * 1_000_000,
    "a million open strings": '"' * 1_000_001,
    "many brackets without end": '["' * 200_000,
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_text_is_judged_in_time(raw):
    started = time.process_time()
    try:
        codec.loads(raw)
    except AppError as error:
        assert error.status in (400, 422)
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[1,]",
        b'{"a":1}x',
        b"'a'",
        b'"a\nb"',
        b'"\\x41"',
        b"01",
        b"+1",
        b".5",
        b"1.",
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b"nan",
        b"True",
        '"\u0000"'.encode(),
        "１".encode(),
    ],
)
def test_what_is_not_json_is_400(raw):
    with pytest.raises(codec.MalformedJSON) as caught:
        codec.loads(raw)
    assert (caught.value.status, caught.value.code) == (400, "malformed_json")
