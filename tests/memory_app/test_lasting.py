"""Over time: facts that begin, end and are said again, and old talk against them."""

from datetime import timedelta

import pytest

from access_app.services import update_project
from agentstate.clock import db_now
from memory_app.policy import Policy
from memory_app.services import NewFact, promote_fact
from tests.memory_app.calls import facts, recall, remember, texts

YEAR = timedelta(days=365)


def at(offset):
    return (db_now() + offset).isoformat()


def by_text(api):
    return {fact["fact"]: fact for fact in facts(api)}


def test_what_begins_later_takes_no_place_before(api, clock):
    remember(api, "On plan Pro", key="plan")
    new = remember(api, "On plan Basic", key="plan", valid_from=at(YEAR))
    assert new["outcome"] == "created"
    assert texts(recall(api, "plan")) == ["On plan Pro"]
    assert texts(recall(api, "plan", as_of=at(2 * YEAR))) == ["On plan Basic"]
    clock.advance(seconds=2 * YEAR.total_seconds())
    assert texts(recall(api, "plan")) == ["On plan Basic"]
    remember(api, "On plan Max", key="plan")
    assert texts(recall(api, "plan")) == ["On plan Max"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["in order", "history later"])
def test_what_had_ended_keeps_its_end(api, order):
    told = [
        {"fact": "At flat 1", "valid_from": at(-9 * YEAR), "valid_to": at(-7 * YEAR)},
        {"fact": "At flat 2", "valid_from": at(-3 * YEAR)},
    ]
    for n in order:
        remember(api, key="address", **told[n])
    ended = by_text(api)["At flat 1"]["valid_to"]
    assert ended[:10] == told[0]["valid_to"][:10]
    assert texts(recall(api, "flat")) == ["At flat 2"]
    assert texts(recall(api, "flat", as_of=at(-8 * YEAR))) == ["At flat 1"]
    assert recall(api, "flat", as_of=at(-5 * YEAR)) == []


@pytest.mark.parametrize("field", ["expires_at", "valid_to"])
def test_what_is_over_and_said_again_holds_again(api, clock, field):
    old = remember(api, "Is on holiday", **{field: at(timedelta(hours=1))})
    clock.advance(seconds=3700)
    assert recall(api, "holiday") == []
    new = remember(api, "Is on holiday")
    assert new["outcome"] == "created" and new["id"] != old["id"]
    assert [hit["id"] for hit in recall(api, "holiday")] == [new["id"]]
    assert api.get(f"/api/v1/memory/{old['id']}").json["status"] == "expired"


def test_an_end_before_the_beginning_is_refused(api):
    body = {"subject": "u-100", "fact": "Likes tea", "valid_to": at(-YEAR)}
    answer = api.post("/api/v1/memory", body)
    assert answer.status_code == 422, answer
    assert answer.json["errors"][0]["path"] == "valid_to"
    body["source"] = {"said_at": at(-2 * YEAR)}
    assert api.post("/api/v1/memory", body).status_code == 201


def test_what_the_user_says_too_does_not_wait(api):
    remember(api, "Likes tea", key="drink")
    guess = remember(api, "Likes coffee", key="drink", source={"kind": "agent"})
    assert guess["status"] == "proposed"
    said = remember(api, "Likes coffee", key="drink", source={"kind": "user"})
    assert said["id"] == guess["id"] and said["status"] == "active"
    assert said["source"]["kind"] == "user" and said["confidence"] == 1.0
    assert texts(recall(api, "likes")) == ["Likes coffee"]
    actions = [
        revision["action"]
        for revision in api.get(f"/api/v1/memory/{guess['id']}/history").json["items"]
    ]
    assert actions == ["confirmed", "remembered"]


def test_what_the_user_said_too_is_not_the_agents_to_change(api):
    remember(api, "On plan Pro", key="plan", source={"kind": "agent"})
    assert remember(api, "On plan Pro", key="plan")["outcome"] == "seen"
    other = remember(api, "On plan Basic", key="plan", source={"kind": "agent"})
    assert other["outcome"] == "review"
    assert texts(recall(api, "plan")) == ["On plan Pro"]


def test_said_again_it_is_newer_than_what_was_said_in_between(api):
    for fact, when in (("On plan Pro", -3), ("On plan Pro", -1), ("On plan Max", -2)):
        remember(api, fact, key="plan", source={"said_at": at(when * YEAR)})
    assert by_text(api)["On plan Max"]["status"] == "superseded"
    assert texts(recall(api, "plan")) == ["On plan Pro"]


@pytest.mark.parametrize(
    "one, other",
    [
        ("Prefers tea to coffee", "Prefers coffee to tea"),
        ("Mag lieber Tee als Kaffee", "Mag lieber Kaffee als Tee"),
        ("Eats the soup before the salad", "Eats the salad before the soup"),
    ],
)
def test_the_same_words_the_other_way_round_say_something_else(
    api, project, one, other
):
    wrong = remember(api, one)
    assert remember(api, other)["duplicate_of"] is None
    assert set(texts(recall(api, one))) == {one, other}
    path = f"/api/v1/memory/{wrong['id']}/reject"
    assert api.post(path, {"expected_version": 1}).status_code == 200
    new = NewFact("u-100", other, session="s-1", seqs=(1,))
    found = promote_fact(project.id, new, actor="system", policy=Policy())
    assert found is not None and found.outcome == "seen"


def test_what_a_project_does_not_keep_is_refused_with_its_place(api, project):
    update_project(project.id, settings={"memory": {"remember": {"agent": "off"}}})
    body = {"subject": "u-1", "fact": "Likes tea", "source": {"kind": "agent"}}
    answer = api.post("/api/v1/memory", body)
    assert answer.status_code == 422, answer
    assert answer.json["errors"][0]["path"] == "source.kind"
