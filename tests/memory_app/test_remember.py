"""POST and GET /api/v1/memory."""

from decimal import Decimal

import pytest


def remember(api, fact, subject="u-100", **fields):
    return api.post("/api/v1/memory", {"subject": subject, "fact": fact, **fields})


def recall(api, q="", subject="u-100", **params):
    answer = api.get(
        "/api/v1/memory/recall", params={"subject": subject, "q": q, **params}
    )
    assert answer.status_code == 200, answer
    return answer.json["items"]


def test_a_fact_is_found_by_the_next_call(api):
    made = remember(api, "Prefers invoices as PDF", kind="preference")
    assert made.status_code == 201, made
    assert made.headers["ETag"] == '"1"'
    [hit] = recall(api, "which format for bills and invoices?")
    assert hit["id"] == made.json["id"]
    assert hit["why"]["terms"] == ["invoic"]
    assert hit["why"]["parts"]["vector"] > 0


def test_lists_are_newest_first(api):
    for name in ("one", "two", "three"):
        remember(api, f"fact {name}")
    answer = api.get("/api/v1/memory", params={"subject": "u-100", "limit": 2})
    assert [f["fact"] for f in answer.json["items"]] == ["fact three", "fact two"]
    rest = api.get(
        "/api/v1/memory",
        params={"subject": "u-100", "limit": 2, "cursor": answer.json["next"]},
    )
    assert [f["fact"] for f in rest.json["items"]] == ["fact one"]


@pytest.mark.parametrize(
    "body",
    [
        {"format": "agentstate", "data": [[1]]},
        {"format": "agentstate", "data": {"facts": [1]}},
        {"format": "mem0", "data": [1]},
        {"format": "letta", "data": {"passages": ["x"]}},
        {"format": "jsonl", "data": [{"fact": "x", "subject": "u\0"}]},
        {"subject": "u-1", "data": '{"fact": "x"}\nno json\n'},
        {"subject": "u-1", "data": '{"fact": "x"}\n{"fact": "y", "fact": "z"}'},
        {"subject": "u-1", "data": '{"fact": "y", "fact": "z"}'},
    ],
)
def test_an_import_of_another_shape_is_refused_with_its_place(api, body):
    answer = api.post("/api/v1/memory/import", body)
    assert answer.status_code == 422
    assert answer.json["errors"][0]["path"]


def test_an_export_comes_back_as_it_was(api, other_api):
    """What waited for a person waits again; a correction stays a person's."""
    answer = api.post(
        "/api/v1/memory",
        {"subject": "u-1", "fact": "Likes tea", "key": "drink", "confidence": 0.7},
    )
    for fields in (
        {"fact": "Likes jam", "key": "food", "note": "by phone"},
        {"fact": "Likes milk", "key": "drink", "source": {"kind": "agent"}},
    ):
        assert remember(api, subject="u-1", **fields).status_code == 201
    fixed = {"fact": "Likes green tea", "expected_version": 1}
    assert api.patch(f"/api/v1/memory/{answer.json['id']}", fixed).status_code == 200
    export = api.get("/api/v1/subjects/u-1/export").json
    done = other_api.post("/api/v1/memory/import", {"data": export})
    assert done.status_code == 200, done
    items = {item["fact"]: item for item in done.json["items"]}
    assert {name: item["status"] for name, item in items.items()} == {
        "Likes green tea": "active",
        "Likes jam": "active",
        "Likes milk": "proposed",
    }
    assert items["Likes green tea"]["confidence"] == Decimal("0.7")
    assert items["Likes green tea"]["settled_by"]
    assert items["Likes jam"]["note"] == "by phone"
    assert items["Likes jam"]["settled_by"] == ""


@pytest.mark.parametrize(
    "wrong, path",
    [
        ({"key": "a\0"}, "key"),
        ({"key": "k" * 501}, "key"),
        ({"metadata": {"a": "x" * 17_000}}, "metadata"),
        ({"confidence": 2}, "confidence"),
        ({"valid_from": "2024-01-01", "valid_to": "2020-01-01"}, "valid_to"),
        ({"valid_to": "2020-01-01"}, "valid_to"),
        ({"valid_from": "0001-01-01T00:00:00+14:00"}, "valid_from"),
        ({"expires_at": "9999-12-31T23:59:59-14:00"}, "expires_at"),
    ],
)
def test_an_import_obeys_the_limits_of_a_call(api, wrong, path):
    data = [{"fact": "Likes jam"}, {"fact": "Likes tea"} | wrong]
    answer = api.post("/api/v1/memory/import", {"subject": "u-1", "data": data})
    assert answer.status_code == 422, answer
    assert answer.json["errors"][0]["path"] == f"facts[1].{path}"
    assert recall(api, subject="u-1") == []


def test_of_many_facts_the_wrong_one_is_named(api):
    wrong = {"fact": "Likes tea", "valid_to": "2020-01-01T00:00:00Z"}
    body = {"subject": "u-1", "facts": [{"fact": "Likes jam"}, wrong]}
    answer = api.post("/api/v1/memory", body)
    assert answer.status_code == 422, answer
    assert answer.json["errors"][0]["path"] == "facts[1].valid_to"
