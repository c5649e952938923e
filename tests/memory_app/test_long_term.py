"""The cases of the area "long-term memory", beside those about forgetting."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import DatabaseError, connection, connections, transaction

from memory_app.consolidation import Decision, consolidate
from memory_app.models import Fact, FactRevision
from memory_app.services import tracked
from tests.memory_app.calls import facts, forget, recall, remember, texts
from tests.queries import CallQueries


def in_threads(count, call):
    """Run `call(i)` in as many threads at the same moment; return what they gave."""
    gate = threading.Barrier(count)

    def run(number):
        gate.wait()
        try:
            return call(number)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def correct(api, row, expected=None, **changes):
    return api.patch(
        f"/api/v1/memory/{row['id']}",
        {"expected_version": expected or row["version"], **changes},
    )


def test_lm_03_the_same_fact_twice_is_one_seen_twice(api):
    first = remember(api, "Alex works night shifts", headers={"Idempotency-Key": "a"})
    again = remember(api, "Alex works night shifts", headers={"Idempotency-Key": "b"})
    assert again["id"] == first["id"]
    assert again["outcome"] == "seen" and again["seen_count"] == 2
    assert again["version"] == first["version"]
    assert texts(recall(api, "shifts")) == ["Alex works night shifts"]


def test_lm_04_rewordings_do_not_fill_recall(api, project):
    said = [
        "The spare keys hang in room 3",
        "the spare keys hang in room 3 ",
        "Room 3 is where the spare keys hang",
        "THE SPARE KEYS HANG IN ROOM 3.",
    ]
    answers = in_threads(
        10, lambda n: [remember(api, said[(n + i) % 4])["id"] for i in range(5)]
    )
    assert len({id_ for ids in answers for id_ in ids}) == 2
    remember(api, "The garage door code was changed")
    found = recall(api, "keys", limit=5)
    assert len(found) == 2
    assert [s["fact"] for s in found[0]["similar"]] != []
    assert found[1]["fact"] == "The garage door code was changed"
    assert sum(f["seen_count"] for f in facts(api)) == 51


def test_names_in_another_order_are_another_fact(api):
    remember(api, "Ann likes Bob")
    remember(api, "Bob likes Ann")
    assert [hit["similar"] for hit in recall(api, "likes")] == [[], []]


def test_lm_05_subjects_do_not_know_of_each_other(api):
    mine = remember(api, "Allergic to peanuts", subject="u-100")
    theirs = remember(api, "Allergic to peanuts", subject="u-200")
    assert theirs["id"] != mine["id"] and theirs["outcome"] == "created"
    forget(api, mine["id"])
    assert texts(facts(api, subject="u-200")) == ["Allergic to peanuts"]


def test_fifty_concurrent_remembers_are_one_fact_with_fifty_sources(api):
    answers = in_threads(
        50,
        lambda n: remember(api, "Likes tea", source={"session": f"s{n}", "seqs": [n]}),
    )
    assert len({answer["id"] for answer in answers}) == 1
    [fact] = facts(api)
    assert fact["seen_count"] == 50
    history = api.get(f"/api/v1/memory/{fact['id']}/history").json
    assert {s["session"] for s in history["sources"]} == {f"s{n}" for n in range(50)}
    assert [r["action"] for r in history["items"]] == ["remembered"]


def test_lm_12_of_two_that_contradict_the_newer_is_found(api):
    new = remember(
        api, "Alex commutes by train only", valid_from="2026-01-01T00:00:00Z"
    )
    old = remember(api, "Alex commutes by car", valid_from="2025-01-01T00:00:00Z")
    assert old["outcome"] == "outdated" and old["superseded_by"] == new["id"]
    assert texts(recall(api, "commute")) == ["Alex commutes by train only"]
    then = recall(api, "commute", as_of="2025-06-01T00:00:00Z")
    assert texts(then) == ["Alex commutes by car"]


def test_lm_12_in_the_order_of_time(api):
    old = remember(api, "Alex commutes by car")
    new = remember(api, "Alex commutes by train only")
    assert new["superseded"] == old["id"]
    assert texts(recall(api, "commute")) == ["Alex commutes by train only"]
    done = api.post("/api/v1/subjects/u-100/consolidate")
    assert done.json == {"superseded": [], "review": [], "skipped": []}
    assert texts(recall(api, "commute")) == ["Alex commutes by train only"]


def test_lm_13_a_slow_tidy_up_writes_over_nothing(api, project):
    made = [remember(api, f"fact {n}", key=f"k{n}") for n in range(30)]

    def slow_judge(read):
        remember(api, "f-31")
        correct(api, made[5], fact="corrected")
        forget(api, made[7]["id"])
        by = made[0]["id"]
        return [Decision(fact.id, fact.version, by) for fact in read[5:8]]

    done = consolidate(project.id, "u-100", actor="system", judge=slow_judge)
    assert [str(i) for i in done.superseded] == [made[6]["id"]]
    assert [str(i) for i in done.skipped] == [made[5]["id"], made[7]["id"]]
    now = {f["id"]: f for f in facts(api, limit=100)}
    assert "f-31" in texts(now.values())
    assert now[made[5]["id"]]["fact"] == "corrected"
    assert made[7]["id"] not in now


def test_lm_14_only_facts_of_one_key_supersede(api):
    remember(api, "Alex moved to flat 4", key="address")
    remember(api, "The meeting moved to Tuesday", key="meeting")
    remember(api, "Kim moved to flat 9", subject="u-200", key="address")
    for subject in ("u-100", "u-200"):
        api.post(f"/api/v1/subjects/{subject}/consolidate")
    assert {f["status"] for f in facts(api)} == {"active"}
    assert facts(api, subject="u-200")[0]["status"] == "active"


def test_lm_14_one_fact_retires_one_fact_and_no_more(api, project):
    first = remember(api, "At flat 1", key="a1")
    second = remember(api, "At flat 2", key="a2")
    for fact in (first, second):
        assert correct(api, fact, key="address").status_code == 200
    third = remember(api, "At flat 3", key="address")
    assert third["outcome"] == "review"
    assert {f["status"] for f in facts(api)} == {"active", "proposed"}


@pytest.mark.parametrize(
    "given, status",
    [
        ("2026-03-29T02:30:00", 422),
        ("2026-03-29T02:30:00+02:00", 201),
        ("2026-03-29T00:30:00Z", 201),
        ("2026-03-29", 422),
        ("not a date", 422),
        ("2026-02-30T00:00:00Z", 422),
    ],
)
def test_lm_15_a_time_has_a_zone(api, given, status):
    answer = api.post(
        "/api/v1/memory", {"subject": "u", "fact": "A", "valid_from": given}
    )
    assert answer.status_code == status
    if status == 201:
        assert answer.json["valid_from"] == "2026-03-29T00:30:00.000000Z"
    else:
        assert answer.json["errors"][0]["path"] == "valid_from"


def test_changes_are_compare_and_set(api):
    fact = remember(api, "Likes tea")
    path = f"/api/v1/memory/{fact['id']}"
    assert api.patch(path, {"fact": "Likes coffee"}).status_code == 428
    assert correct(api, fact, fact="Likes coffee").json["version"] == 2
    late = correct(api, fact, fact="Likes water")
    assert late.status_code == 409
    assert late.json["code"] == "version_conflict"
    assert late.json["current_version"] == 2
    assert late.json["changed_fields"] == ["fact", "settled_by"]
    for move in ("approve", "reject"):
        assert api.post(f"{path}/{move}", {}).status_code == 428
        stale = api.post(f"{path}/{move}", {"expected_version": 1})
        assert stale.status_code == 409
    by_etag = api.post(f"{path}/reject", {}, headers={"If-Match": '"2"'})
    assert by_etag.status_code == 200 and by_etag.headers["ETag"] == '"3"'


def test_one_of_two_concurrent_corrections_wins(api):
    fact = remember(api, "Likes tea")
    answers = in_threads(
        8, lambda n: correct(api, fact, fact=f"Likes drink {n}").status_code
    )
    assert sorted(answers) == [200, *[409] * 7]


def test_ad_07_history_holds_what_changed_and_nothing_else(api, project):
    fact = remember(api, "A", kind="preference", note="x")
    correct(api, fact, fact="B", reason="typo")
    items = api.get(f"/api/v1/memory/{fact['id']}/history").json["items"]
    assert items[0]["changes"] == {
        "fact": ["A", "B"],
        "settled_by": ["", items[0]["actor"]],
    }
    assert items[0]["reason"] == "typo"
    same = correct(api, {**fact, "version": 2}, note="x")
    assert same.json["version"] == 2, "nothing changed, so there is no new version"
    row = Fact.objects.get(id=fact["id"])
    rebuilt = {}
    for revision in FactRevision.objects.filter(memory=row).order_by("version"):
        rebuilt |= {name: after for name, (_, after) in revision.changes.items()}
    held = {k: v for k, v in tracked(row).items() if v not in (None, "", {}, False)}
    assert {k: v for k, v in rebuilt.items() if v not in (None, "", {})} == held


def test_ad_06_bulk_changes_are_audited_one_by_one_all_or_none(api, project):
    made = [remember(api, f"fact {n}") for n in range(20)]
    items = [
        {"op": "correct", "id": f["id"], "expected_version": 1, "kind": "profile"}
        for f in made
    ]
    done = api.post("/api/v1/memory/bulk", {"items": items, "reason": "sorted"})
    assert done.status_code == 200, done
    entries = audit(api, "memory.corrected")
    assert len(entries) == 20
    assert entries[0]["before"] == {"kind": "other"}
    assert entries[0]["after"] == {"kind": "profile"}
    assert {e["reason"] for e in entries} == {"sorted"}
    wrong = [{"op": "reject", "id": f["id"], "expected_version": 2} for f in made]
    wrong[13]["expected_version"] = 7
    refused = api.post("/api/v1/memory/bulk", {"items": wrong})
    assert refused.status_code == 409 and refused.json["index"] == 13
    assert audit(api, "memory.rejected") == []
    assert {f["status"] for f in facts(api)} == {"active"}
    api.post("/api/v1/memory/forget", {"ids": [f["id"] for f in made]})
    assert len(audit(api, "memory.forgotten")) == 20


def audit(api, action):
    answer = api.get("/api/v1/audit", params={"action": action, "limit": 100})
    return answer.json["items"]


def test_ad_06_no_statement_changes_a_fact_in_silence(api):
    fact = remember(api, "Likes tea")
    for statement in (
        "UPDATE agent_memory SET fact = 'x' WHERE id = %s",
        "UPDATE agent_memory SET status = 'rejected', version = 2 WHERE id = %s",
        "UPDATE agent_memory SET subject = 'u-2' WHERE id = %s",
    ):
        with (
            pytest.raises(DatabaseError, match="version|revision"),
            transaction.atomic(),
            connection.cursor() as cursor,
        ):
            cursor.execute(statement, [fact["id"]])
    assert facts(api)[0]["fact"] == "Likes tea"


def test_a_fact_expires_by_the_database_clock(api, project, clock):
    from datetime import timedelta

    from agentstate.clock import db_now
    from memory_app.services import expire_facts

    soon = (db_now() + timedelta(hours=1)).isoformat()
    fact = remember(api, "Is on holiday", expires_at=soon)
    assert texts(recall(api, "holiday")) == ["Is on holiday"]
    clock.advance(seconds=3700)
    assert recall(api, "holiday") == []
    assert expire_facts() >= 1
    shown = api.get(f"/api/v1/memory/{fact['id']}").json
    assert shown["status"] == "expired" and shown["version"] == 2


def test_review_moves(api):
    fact = remember(api, "Likes tea", source={"kind": "user"}, key="drink")
    guess = remember(api, "Likes coffee", source={"kind": "agent"}, key="drink")
    assert guess["outcome"] == "review" and guess["conflicts_with"] == fact["id"]
    queue = api.get("/api/v1/memory", params={"status": "proposed"}).json["items"]
    assert [f["id"] for f in queue] == [guess["id"]]
    assert texts(recall(api, "likes")) == ["Likes tea"]
    done = api.post(
        f"/api/v1/memory/{guess['id']}/approve", {"expected_version": 1}
    ).json
    assert done["status"] == "active"
    assert texts(recall(api, "likes")) == ["Likes coffee"]
    old = api.get(f"/api/v1/memory/{fact['id']}").json
    assert old["status"] == "superseded" and old["superseded_by"] == guess["id"]


def test_a_correction_that_is_another_fact_is_refused(api):
    one, two = remember(api, "Likes tea"), remember(api, "Likes coffee")
    answer = correct(api, two, fact="likes TEA.")
    assert answer.status_code == 409 and answer.json["code"] == "fact_exists"
    assert answer.json["id"] == one["id"]


def test_unknown_fields_and_sessions_are_refused(api, other_api):
    from tests.memory_app.calls import open_session

    body = {"subject": "u", "fact": "x"}
    assert api.post("/api/v1/memory", body | {"fcat": 1}).status_code == 422
    foreign = open_session(other_api)
    answer = api.post("/api/v1/memory", body | {"source": {"session": foreign}})
    assert answer.status_code == 422
    assert answer.json["errors"][0]["path"] == "source.session"
    for wrong in ({"fact": " "}, {"fact": "x" * 10_001}, {"confidence": 2}):
        assert api.post("/api/v1/memory", body | wrong).status_code == 422


def test_export_and_import_give_the_same_facts(api, other_api):
    given = ["=HYPERLINK(1)", "+1+1", "-2", "@SUM(A1)", "\tTab first", "\r=1", " =2"]
    for text in given:
        remember(api, text)
    export = api.get("/api/v1/subjects/u-100/export")
    assert export.json["format"] == "agentstate.subject/1"
    assert [f["fact"] for f in export.json["facts"]] == given
    assert export.json["facts"][0]["history"][0]["action"] == "remembered"
    done = other_api.post("/api/v1/memory/import", {"data": export.json})
    assert done.status_code == 200, done
    assert texts(facts(other_api))[::-1] == given


@pytest.mark.parametrize(
    "data",
    [
        '{"fact": "Likes tea", "subject": "u-100"}\n{"fact": "Has a dog"}\n',
        {
            "results": [
                {"id": "1", "memory": "Likes tea", "user_id": "u-100"},
                {"id": "2", "memory": "Has a dog", "categories": ["pets"]},
            ]
        },
        {
            "passages": [{"text": "Likes tea", "created_at": "2026-01-01T10:00:00"}],
            "blocks": [{"label": "human", "value": "Has a dog", "limit": 2000}],
        },
    ],
    ids=["jsonl", "mem0", "letta"],
)
def test_imports_of_other_systems(api, data):
    body = {"subject": "u-100", "data": data}
    done = api.post("/api/v1/memory/import", body)
    assert done.status_code == 200, done
    assert sorted(texts(facts(api))) == ["Has a dog", "Likes tea"]
    again = api.post("/api/v1/memory/import", body)
    assert {item["outcome"] for item in again.json["items"]} == {"seen"}


def test_lists_cost_the_same_number_of_queries(api):
    for n in range(30):
        remember(api, f"fact {n}")
    recall(api, "fact")
    assert queries(lambda: facts(api, limit=5)) == 1
    assert queries(lambda: facts(api, limit=30)) == 1
    assert queries(lambda: recall(api, "fact 7", limit=5)) == 2
    assert queries(lambda: recall(api, "fact 7", limit=30)) == 2


def queries(call):
    """How many statements look at memory; the key's own is read once a second."""
    with CallQueries() as captured:
        call()
    return sum("agent_memory" in query["sql"] for query in captured)
