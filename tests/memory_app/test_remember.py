"""POST and GET /api/v1/memory."""

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
