"""agentstate.json_patch: RFC 6902, RFC 7396, and the patch between two values."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentstate import codec, json_patch
from agentstate.errors import FieldError
from agentstate.json_patch import (
    PatchFailed,
    apply_patch,
    changed_paths,
    diff,
    merge_patch,
    same_value,
)
from tests.json_values import OBJECTS, TEXT, VALUES, written

APPLIES = {
    "add a member": ({"a": 1}, [("add", "/b", 2)], {"a": 1, "b": 2}),
    "add replaces a member": ({"a": 1}, [("add", "/a", 2)], {"a": 2}),
    "add into an array": ([1, 3], [("add", "/1", 2)], [1, 2, 3]),
    "add at an array's end by its length": ([1], [("add", "/1", 2)], [1, 2]),
    "add at an array's end by -": ([1], [("add", "/-", 2)], [1, 2]),
    "add an array as one item": ([1], [("add", "/-", [2, 3])], [1, [2, 3]]),
    "add in the deep": (
        {"a": [{"b": {}}]},
        [("add", "/a/0/b/c", 1)],
        {"a": [{"b": {"c": 1}}]},
    ),
    "add null": ({}, [("add", "/a", None)], {"a": None}),
    "add the whole": ({"a": 1}, [("add", "", [1])], [1]),
    "an empty key": ({"": 1}, [("replace", "/", 2)], {"": 2}),
    "a key with a slash": ({"a/b": 1}, [("replace", "/a~1b", 2)], {"a/b": 2}),
    "a key with a tilde": ({"m~n": 1}, [("remove", "/m~0n")], {}),
    "~01 is a tilde and a one": ({"~1": 1}, [("replace", "/~01", 2)], {"~1": 2}),
    "a digit as a key": ({"0": 1}, [("replace", "/0", 2)], {"0": 2}),
    "- as a key": ({"-": 1}, [("replace", "/-", 2)], {"-": 2}),
    "remove a member": ({"a": 1, "b": 2}, [("remove", "/a")], {"b": 2}),
    "remove an item": ([1, 2, 3], [("remove", "/1")], [1, 3]),
    "remove a null": ({"a": None}, [("remove", "/a")], {}),
    "replace a member": ({"a": 1}, [("replace", "/a", None)], {"a": None}),
    "replace an item": ([1, 2], [("replace", "/0", 3)], [3, 2]),
    "replace the whole": ({"a": 1}, [("replace", "", {})], {}),
    "move a member": ({"a": 1}, [("move", "/b", "/a")], {"b": 1}),
    "move within an array": ([1, 2, 3], [("move", "/0", "/2")], [3, 1, 2]),
    "move to where it is": ({"a": 1}, [("move", "/a", "/a")], {"a": 1}),
    "copy a member": ({"a": [1]}, [("copy", "/b", "/a")], {"a": [1], "b": [1]}),
    "copy into itself": ({"a": {}}, [("copy", "/a/b", "/a")], {"a": {"b": {}}}),
    "a copy is a value of its own": (
        {"a": [1]},
        [("copy", "/b", "/a"), ("add", "/b/-", 2)],
        {"a": [1], "b": [1, 2]},
    ),
    "an added value is a value of its own": (
        {"a": 0},
        [("add", "/b", {"x": []}), ("copy", "/c", "/b"), ("add", "/c/x/-", 1)],
        {"a": 0, "b": {"x": []}, "c": {"x": [1]}},
    ),
    "test a number by its value": ({"a": 1}, [("test", "/a", 1.0)], {"a": 1}),
    "test an object in any order": (
        {"a": 1, "b": 2},
        [("test", "", {"b": 2, "a": 1})],
        {"a": 1, "b": 2},
    ),
    "test a null": ({"a": None}, [("test", "/a", None)], {"a": None}),
    "nothing at all": ({"a": 1}, [], {"a": 1}),
}

FAILS = {
    "remove what is not there": ({}, [("remove", "/a")]),
    "replace what is not there": ({}, [("replace", "/a", 1)]),
    "add under what is not there": ({}, [("add", "/a/b", 1)]),
    "add under a string": ({"a": "x"}, [("add", "/a/0", 1)]),
    "add past the end": ([1], [("add", "/2", 1)]),
    "replace past the end": ([1], [("replace", "/1", 1)]),
    "replace by -": ([1], [("replace", "/-", 1)]),
    "remove by -": ([1], [("remove", "/-")]),
    "a name in an array": ([1], [("add", "/a", 1)]),
    "a leading zero": ([1, 2], [("replace", "/01", 1)]),
    "a negative position": ([1], [("replace", "/-1", 1)]),
    "an enormous position": ([1], [("replace", "/" + "9" * 5000, 1)]),
    "a digit of another script": ([1, 2], [("replace", "/\u0661", 1)]),
    "move what is not there": ({}, [("move", "/b", "/a")]),
    "move into itself": ({"a": {"b": 1}}, [("move", "/a/b", "/a")]),
    "copy what is not there": ({}, [("copy", "/b", "/a")]),
    "test another value": ({"a": 1}, [("test", "/a", 2)]),
    "test true against 1": ({"a": 1}, [("test", "/a", True)]),
    "test 0 against false": ({"a": False}, [("test", "/a", 0)]),
    "test a number against its text": ({"a": 10}, [("test", "/a", "10")]),
    "test what is not there": ({}, [("test", "/a", None)]),
    "the second of two": ({"a": 1}, [("add", "/b", 1), ("test", "/a", 2)]),
}

MALFORMED = {
    "no operation": ({"path": "/a", "value": 1}, "op"),
    "an unknown operation": ({"op": "spam", "path": "/a"}, "op"),
    "no path": ({"op": "remove"}, "path"),
    "a path that does not begin with /": ({"op": "remove", "path": "a"}, "path"),
    "a path that is no string": ({"op": "remove", "path": 1}, "path"),
    "no value": ({"op": "add", "path": "/a"}, "value"),
    "no from": ({"op": "copy", "path": "/b"}, "from"),
    "an operation that is a list": ({"op": ["add"], "path": "/b", "value": 1}, "op"),
}

# RFC 7396: value, patch, what comes out.
MERGES = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


def operations(short):
    made = []
    for op, path, *rest in short:
        name = "from" if op in ("move", "copy") else "value"
        made.append({"op": op, "path": path} | dict(zip([name], rest, strict=False)))
    return made


@pytest.mark.parametrize(("value", "patch", "result"), APPLIES.values(), ids=APPLIES)
def test_a_patch_applies(value, patch, result):
    before = codec.dumps(value)
    assert written(apply_patch(value, operations(patch))) == written(result)
    assert codec.dumps(value) == before


@pytest.mark.parametrize(("value", "patch"), FAILS.values(), ids=FAILS)
def test_a_patch_that_does_not_fit_fails_whole(value, patch):
    before = codec.dumps(value)
    with pytest.raises(PatchFailed) as caught:
        apply_patch(value, operations(patch))
    assert caught.value.extra["operation"] == len(patch) - 1
    assert codec.dumps(value) == before


@pytest.mark.parametrize(("operation", "field"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_operation_is_refused_with_its_path(operation, field):
    with pytest.raises(FieldError) as caught:
        apply_patch({"a": 1}, [{"op": "test", "path": "/a", "value": 1}, operation])
    assert caught.value.extra["errors"][0]["path"] == f"patch[1].{field}"


@pytest.mark.parametrize(("value", "patch", "result"), MERGES)
def test_a_merge_patch_is_merged(value, patch, result):
    before = codec.dumps(value)
    assert merge_patch(value, patch) == result
    assert codec.dumps(value) == before


def test_cc_07_a_reserved_name_of_javascript_is_a_key_like_any_other():
    user = {"__proto__": {"polluted": "yes"}, "constructor": "x", "ok": 1}
    assert merge_patch({"user": {"a": 1}}, {"user": user})["user"] == {"a": 1} | user
    patched = apply_patch({"user": {}}, diff({"user": {}}, {"user": user}))
    assert patched == {"user": user}


EDITS = st.lists(
    st.tuples(st.integers(0, 9), st.sampled_from(["drop", "put", "insert"]), VALUES),
    max_size=4,
)


@given(VALUES, VALUES)
@example(1, True)
@example({"a": [0]}, {"a": [False]})
@example({"": {"~": 1}}, {"": {"~": {"/": 1}}})
def test_the_difference_applied_to_the_old_gives_the_new(old, new):
    assert written(apply_patch(old, diff(old, new))) == written(new)


@given(st.lists(VALUES, max_size=8), EDITS)
def test_the_difference_of_edited_arrays_gives_the_new(old, edits):
    new = list(old)
    for at, what, value in edits:
        if what == "insert" or not new:
            new.insert(at, value)
        elif what == "put":
            new[at % len(new)] = value
        else:
            del new[at % len(new)]
    assert written(apply_patch({"a": old}, diff({"a": old}, {"a": new}))) == written(
        {"a": new}
    )


@given(OBJECTS, OBJECTS)
def test_a_patch_survives_being_written_and_read(old, new):
    patch = codec.loads(codec.dumps(diff(old, new)), max_depth=1000)
    assert written(apply_patch(old, patch)) == written(new)


def test_another_writing_of_a_number_is_a_difference():
    one, also_one = codec.loads("1"), codec.loads("1.0")
    assert same_value(one, also_one)
    assert diff(one, one) == []
    assert diff(also_one, codec.loads("1.00")) != []
    patched = apply_patch({"a": one}, diff({"a": one}, {"a": also_one}))
    assert codec.dumps(patched) == '{"a":1.0}'


def test_another_order_of_keys_is_no_difference():
    assert diff({"a": 1, "b": 2}, {"b": 2, "a": 1}) == []


def test_keys_that_stay_keep_their_place_and_new_ones_follow():
    old, new = {"a": 1, "b": 2, "c": 3}, {"d": 4, "c": 5, "a": 1}
    assert list(apply_patch(old, diff(old, new))) == ["a", "c", "d"]


@given(OBJECTS, TEXT, VALUES)
def test_a_merge_of_one_member_leaves_the_others(old, key, value):
    merged = merge_patch(old, {key: value})
    assert {k: written(v) for k, v in merged.items() if k != key} == {
        k: written(v) for k, v in old.items() if k != key
    }


def test_the_changed_paths_stand_once_and_in_order():
    patch = operations([("add", "/b", 1), ("remove", "/a"), ("replace", "/b", 2)])
    assert changed_paths(patch) == ["/b", "/a"]


def test_an_item_more_or_less_in_an_array_is_a_small_patch():
    old = {"items": [{"n": n} for n in range(200)]}
    inserted = {"items": [*old["items"][:50], {"n": -1}, *old["items"][50:]]}
    assert len(diff(old, inserted)) == 1
    assert len(diff(inserted, old)) == 1


def test_an_unlike_array_is_not_spelt_item_by_item():
    """Else the log would hold thirty bytes for each one that was sent."""
    old, new = {"a": []}, {"a": [0] * 10_000}
    assert len(codec.dumps(diff(old, new))) < 2 * len(codec.dumps(new)) + 100
    assert apply_patch(old, diff(old, new)) == new
    assert len(codec.dumps(diff(new, old))) < 100


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({}, {"a": [0] * 300_000}),
        ({"a": []}, {"a": [0] * 300_000}),
        ({"a": [0] * 300_000}, {"a": []}),
        ({"a": [0] * 300_000}, {"a": [1] * 200_000}),
        ({}, {str(n): 0 for n in range(100_000)}),
        ({str(n): 0 for n in range(100_000)}, {}),
        ({str(n): 0 for n in range(100_000)}, {str(n): 1 for n in range(100_000)}),
    ],
    ids=[
        "new array",
        "grown",
        "emptied",
        "replaced",
        "keys",
        "no keys",
        "other values",
    ],
)
def test_a_large_change_costs_its_size(old, new):
    started = time.process_time()
    assert apply_patch(old, diff(old, new)) == new
    assert time.process_time() - started < 5


def test_a_patch_of_many_operations_costs_their_number():
    patch = operations([("add", "/a/-", n) for n in range(100_000)])
    started = time.process_time()
    assert len(apply_patch({"a": []}, patch)["a"]) == 100_000
    assert time.process_time() - started < 5


def test_a_value_copied_again_and_again_does_not_fill_the_memory():
    """Each copy doubles the value: thirty operations would be a billion items."""
    patch = operations([("add", "/a", ["x"])] + [("copy", "/a/-", "/a")] * 40)
    with pytest.raises((PatchFailed, FieldError)):
        apply_patch({}, patch)


DOWN = {"op": "move", "from": "/a", "path": "/o/a"}
UP = {"op": "move", "from": "/o/a", "path": "/a"}
ADD_FIRST = {"op": "add", "path": "/a/0", "value": 1}
REMOVE_FIRST = {"op": "remove", "path": "/a/0"}


@pytest.mark.parametrize(
    "there_and_back",
    [(DOWN, UP), (ADD_FIRST, REMOVE_FIRST)],
    ids=["into an object", "in an array"],
)
def test_moving_much_again_and_again_is_refused(there_and_back, monkeypatch):
    """A few operations are little to send, and each may be much to do."""
    monkeypatch.setattr(json_patch, "MOVED_VALUES_MAX", 200_000)
    state = {"a": [0] * 50_000, "o": {}}
    with pytest.raises(PatchFailed, match="moves too much"):
        apply_patch(state, [*there_and_back] * 5_000)


def test_a_large_value_can_be_moved():
    state = {"a": [0] * 1_000_000, "o": {}}
    assert len(apply_patch(state, [DOWN])["o"]["a"]) == 1_000_000
    assert apply_patch(state, [DOWN, UP] * 2) == state


def test_a_move_cannot_nest_deeper_than_the_limit():
    wrap = [
        {"op": "add", "path": "/b", "value": {}},
        {"op": "move", "from": "/a", "path": "/b/a"},
        {"op": "move", "from": "/b", "path": "/a"},
    ]
    with pytest.raises(FieldError, match="deeper"):
        apply_patch({"a": {}}, wrap * 101)
