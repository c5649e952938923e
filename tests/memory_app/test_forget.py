"""What was forgotten is gone, wherever it was, and what remains still holds."""

from dataclasses import replace
from datetime import timedelta
from urllib.parse import quote
from uuid import uuid4

import pytest
from django.db import connection, transaction

from agentstate.clock import db_now
from agentstate.ids import new_id
from memory_app.embedding import embedders, reembed
from memory_app.models import FactEmbedding
from memory_app.services import NewFact, promote_fact
from sessions_app.projection import differences_of
from tests.memory_app.calls import (
    append,
    close,
    facts,
    forget,
    open_session,
    places_with,
    recall,
    remember,
    say,
    texts,
    upload_file,
)


def sentinel():
    return f"ZQ{uuid4().hex[:10].upper()}"


def check_replay(project, *sessions):
    found = [d for s in sessions for d in differences_of(project.id, s)]
    assert found == []


def test_lm_06_a_forgotten_fact_has_no_vector_and_no_place(api):
    word = sentinel()
    fact = remember(api, f"Alex's badge number is {word}")
    other = remember(api, "Alex works in hall 3")
    assert recall(api, "badge")[0]["id"] == fact["id"]
    forget(api, fact["id"])
    for mode in ("hybrid", "text", "vector"):
        assert fact["id"] not in [hit["id"] for hit in recall(api, "badge", mode=mode)]
    assert recall(api, word, mode="text") == []
    assert [f["id"] for f in facts(api)] == [other["id"]]
    assert api.get(f"/api/v1/memory/{fact['id']}").status_code == 404
    assert api.get(f"/api/v1/memory/{fact['id']}/history").status_code == 404
    export = api.get("/api/v1/subjects/u-100/export")
    assert word.encode() not in export.content
    assert not FactEmbedding.objects.filter(memory_id=fact["id"]).exists()
    assert places_with(word) == []


def test_lm_06_a_state_that_held_a_null_character_is_forgotten(api, project):
    word = sentinel()
    session = open_session(api, subject="u-null")
    for version, text in enumerate((f"\0 {word}", f"{word} \0 again")):
        body = {"state": {"text": text}, "expected_version": version}
        answer = api.put(f"/api/v1/sessions/{session}/state", body)
        assert answer.status_code == 200, answer
    assert api.post("/api/v1/subjects/u-null/forget", {}).status_code == 200
    assert places_with(word) == []
    check_replay(project, session)


def test_lm_06_forgetting_while_the_embedding_is_under_way(api, project, monkeypatch):
    fact = remember(api, "Alex's badge number is 4471")
    kept = remember(api, "Alex works in hall 3")
    FactEmbedding.objects.filter(project_id=project.id).delete()
    embed = reembed.embed_facts

    def forget_meanwhile(model, batch):
        vectors = embed(model, batch)
        forget(api, fact["id"])
        return vectors

    monkeypatch.setattr(reembed, "embed_facts", forget_meanwhile)
    assert reembed.embed_missing(project.id).done == 1
    embedded = FactEmbedding.objects.filter(project_id=project.id)
    assert [str(e.memory_id) for e in embedded] == [kept["id"]]
    assert embedders.configured_model() == embedded[0].model


def test_lm_08_success_never_goes_with_nothing_forgotten(api, other_api):
    mine = remember(api, "one")["id"]
    gone = remember(api, "two")["id"]
    batch = [remember(api, "three")["id"]]
    foreign = remember(other_api, "theirs")["id"]
    unknown = str(new_id())
    forget(api, gone)

    def status(fact_id):
        return api.post(f"/api/v1/memory/{fact_id}/forget", {}).status_code

    assert [status(i) for i in (mine, foreign, gone, unknown)] == [200, 404, 404, 404]
    answer = api.post(
        "/api/v1/memory/forget", {"ids": [*batch, foreign, gone, unknown]}
    )
    assert answer.json["forgotten"] == 1
    assert [item["status"] for item in answer.json["items"]] == [
        "forgotten",
        "not_found",
        "not_found",
        "not_found",
    ]
    none = api.post("/api/v1/memory/forget", {"ids": [foreign, gone, unknown]})
    assert none.status_code == 404
    assert texts(facts(other_api)) == ["theirs"]


def test_lm_10_everywhere_means_the_log_and_all_made_from_it(api, project, redis):
    code = sentinel()
    iban = f"XX00 {code} 1234"
    session = open_session(
        api,
        title=f"About {iban}",
        state={"note": f"IBAN: {iban}", "step": 1},
        metadata={"seen": [iban]},
    )
    [seq] = say(api, session, f"My IBAN is {iban}")
    say(api, session, f"I have noted {iban}.", role="assistant")
    append(
        api,
        session,
        ("tool.call", {"tool_call_id": "c", "name": "pay", "arguments": {"to": iban}}),
        ("tool.result", {"tool_call_id": "c", "content": f"paid to {iban}"}),
        ("client.note", {"anything": {iban: [1, iban]}}),
    )
    state = f"/api/v1/sessions/{session}/state"
    changed = api.put(
        state, {"state": {"note": f"to {iban}", "step": 2}, "expected_version": 1}
    )
    assert changed.status_code == 200, changed
    files = [
        upload_file(api, session, f"to {iban}\n".encode() * 30_000, "order.txt"),
        upload_file(api, session, b"nothing of it", f"{code}.txt"),
        upload_file(api, session, b"nor in here", "m.txt", {"to": [iban]}),
    ]
    kept = upload_file(api, session, b"tea at five", "tea.txt")
    upload_file(api, session, b"\xff\xfe\x00", "photo.jpg")
    redis.set(f"agentstate:wm:{session}:draft", f"pay to {iban}")
    redis.set(f"agentstate:wm:{session}:other", "nothing of it")
    fact = remember(
        api,
        f"IBAN is {iban}",
        source={"session": session, "seqs": [seq]},
        headers={"Idempotency-Key": "first"},
    )
    remember(api, f"Pays from {iban} on Fridays")
    remember(api, "Likes tea")
    assert places_with(code)
    receipt = forget(api, fact["id"], scope="everywhere", reason=f"asked: {iban}")
    assert places_with(code) == []
    assert receipt["forgotten"] == 2
    assert receipt["counts"]["agent_events"] >= 5
    assert receipt["counts"]["working_memory"] == 1
    assert {k["place"] for k in receipt["kept"]} == {"agent_events", "agent_artifacts"}
    assert receipt["counts"]["agent_artifacts"] == 3
    for each in files:
        assert api.get(f"/api/v1/artifacts/{each}").status_code == 404
    assert api.get(f"/api/v1/artifacts/{kept}/content").content == b"tea at five"
    assert redis.get(f"agentstate:wm:{session}:other") == b"nothing of it"
    assert texts(facts(api)) == ["Likes tea"]
    events = api.get(f"/api/v1/sessions/{session}/events").json["items"]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert api.get(state).json["state"]["step"] == 2
    check_replay(project, session)


@pytest.mark.parametrize(
    "spelled",
    [
        r'{"to": "Andr\u00e9e Qu\u00ednn"}',
        r'{"to": "Andr\u00E9e\nQu\u00CDnn"}',
        r'"x\\\u0041ndr\u00e9e Qu\u00ednn, \ud83d\ude00 \ud800"',
        r'"' + "y" * (256 * 1024 - 6) + r' Andr\u00e9e Qu\u00ednn"',
    ],
)
def test_a_file_is_searched_for_what_it_spells(api, project, spelled):
    session = open_session(api)
    gone = upload_file(api, session, spelled.encode(), "a.json")
    kept = upload_file(api, session, rb'{"to": "Andr\u00e9 \n \u00"}', "b.json")
    fact = remember(api, "The name is Andrée Quínn")
    forget(api, fact["id"], scope="everywhere")
    assert api.get(f"/api/v1/artifacts/{gone}").status_code == 404
    assert api.get(f"/api/v1/artifacts/{kept}").status_code == 200
    check_replay(project, session)


def test_lm_10_a_store_that_fails_is_named(api, project, monkeypatch):
    from memory_app.forgetting import elsewhere

    fact = remember(api, "IBAN is XX00 TEST 1234")

    def away(*args):
        raise elsewhere.RedisAway("TimeoutError")

    monkeypatch.setattr(elsewhere, "forget_in_redis", away)
    receipt = forget(api, fact["id"], scope="everywhere")
    named = {kept["place"]: kept["why"] for kept in receipt["kept"]}
    assert "TimeoutError" in named["working_memory"]
    assert receipt["forgotten"] == 1


def test_a_subject_is_forgotten_from_every_place(api, project, redis):
    word = sentinel()
    subject = f"{word}@example.com"
    session = open_session(
        api,
        subject=subject,
        key=f"key-{word}",
        title=word,
        labels={"about": word},
        metadata={"deep": [{word: word}]},
        state={word: word},
    )
    append(
        api,
        session,
        ("message.user", {"content": f"I am {word}", "extra": {word: 1}}),
        ("message.assistant", {"content": [{"type": "text", "text": word}]}),
        ("tool.call", {"tool_call_id": "c1", "name": "look", "arguments": {"q": word}}),
        ("tool.result", {"tool_call_id": "c1", "content": {"found": word}}),
        ("reasoning", {"content": word}),
        ("client.thing", {word: [word]}),
    )
    patch = api.request(
        "PATCH",
        f"/api/v1/sessions/{session}",
        json={"title": f"{word} again", "labels": {"x": word}},
    )
    assert patch.status_code == 200, patch
    for version in range(1, 6):
        put = api.put(
            f"/api/v1/sessions/{session}/state",
            {"state": {word: version}, "expected_version": version},
        )
        assert put.status_code == 200, put
    fork = api.post(f"/api/v1/sessions/{session}/fork", {"at_seq": 4}).json["id"]
    say(api, fork, f"In the fork: {word}")
    redis.set(f"agentstate:wm:{session}:x", word)
    text = f"about {word}".encode()
    shared = upload_file(api, session, text, f"{word}.txt", {"about": word})
    twin = upload_file(api, fork, text, f"{word}.txt")
    gone = upload_file(api, session, text, f"{word} 2.txt")
    assert api.delete(f"/api/v1/artifacts/{gone}").status_code == 204
    fact = remember(
        api,
        f"Is {word}",
        subject=subject,
        source={"session": session, "seqs": [1]},
        metadata={"m": word},
        note=word,
        headers={"Idempotency-Key": word},
    )
    corrected = api.patch(
        f"/api/v1/memory/{fact['id']}",
        {"fact": f"Was {word}", "expected_version": 1, "reason": f"because {word}"},
    )
    assert corrected.status_code == 200, corrected
    remember(api, "Somebody else", subject="u-2")
    before = places_with(word)
    assert "agent_events.payload" in before and "access_audit.after" in before
    assert "agent_artifacts.name" in before
    assert any(place.startswith("file:") for place in before)

    path = f"/api/v1/subjects/{subject}/forget"
    dry = api.post(path, {"dry_run": True}).json
    assert dry["receipt"] is None and dry["forgotten"] == 1
    assert set(places_with(word)) == set(before)
    done = api.post(path, {"reason": f"{subject} asked for it"}).json
    assert done["counts"] == dry["counts"] | {"working_memory": 1}
    assert done["counts"]["agent_artifacts"] == 2
    for each in (shared, twin):
        assert api.get(f"/api/v1/artifacts/{each}/content").status_code == 404
    assert places_with(word) == []
    check_replay(project, session, fork)

    replay = api.get(f"/api/v1/sessions/{session}/replay", params={"at_seq": 6})
    assert replay.status_code == 200, replay
    assert replay.json["conversation"][0]["payload"]["content"] == "[forgotten]"
    say(api, fork, "the log goes on")
    close(api, session)
    check_replay(project, session, fork)
    assert recall(api, subject=subject) == []
    assert texts(facts(api, subject="u-2")) == ["Somebody else"]
    receipts = api.get("/api/v1/memory/receipts").json["items"]
    assert receipts[0]["receipt"] == done["receipt"]
    again = api.post(path, {}).json
    assert again["forgotten"] == 0


def test_bytes_that_another_subject_has_too_stay_his(api, project):
    one = open_session(api, subject="u-1")
    two = open_session(api, subject="u-2")
    mine = upload_file(api, one, b"the same for both", "a.txt")
    theirs = upload_file(api, two, b"the same for both", "b.txt")
    assert api.post("/api/v1/subjects/u-1/forget", {}).status_code == 200
    assert api.get(f"/api/v1/artifacts/{mine}").status_code == 404
    down = api.get(f"/api/v1/artifacts/{theirs}/content")
    assert down.content == b"the same for both"
    check_replay(project, one, two)


def test_a_retry_of_the_forgotten_call_does_not_bring_it_back(api):
    headers = {"Idempotency-Key": "once"}
    fact = remember(api, "Likes trains", headers=headers)
    forget(api, fact["id"])
    again = remember(api, "Likes trains", headers=headers)
    assert again == {"status": "forgotten"}
    assert facts(api) == []


@pytest.mark.parametrize("how", ["forgotten", "rejected"])
def test_promotion_does_not_bring_back(api, project, how):
    from memory_app.errors import SubjectForgotten
    from memory_app.policy import Policy

    source = {"session": "s-1", "seqs": [3]}
    fact = remember(api, "Has a cat named Tom", source=source)
    if how == "forgotten":
        forget(api, fact["id"])
    else:
        path = f"/api/v1/memory/{fact['id']}/reject"
        assert api.post(path, {"expected_version": 1}).status_code == 200
    for text in ("has a cat named Tom.", "A cat named Tom has"):
        new = NewFact("u-100", text, session="s-2", seqs=(9,))
        with pytest.raises(SubjectForgotten):
            promote_fact(project.id, new, actor="system", policy=Policy())
    # Reworded, but from the very event.
    new = NewFact("u-100", "Tom is the cat", session="s-1", seqs=(3,))
    with pytest.raises(SubjectForgotten):
        promote_fact(project.id, new, actor="system", policy=Policy())


def test_the_log_is_changed_by_the_redact_function_alone(api, project):
    session = open_session(api)
    say(api, session, "hello")
    with (
        pytest.raises(Exception, match="append-only"),
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(
            "UPDATE agent_events SET payload = '{}' WHERE session_id = %s", [session]
        )


def complete(api, step, result):
    item = {"step": step["step"], "lease_token": step["lease_token"], "result": result}
    done = api.post("/api/v1/steps/complete", {"items": [item]})
    assert done.status_code == 200, done


def run_with(api, session, word):
    """A run with `word` wherever a client can put it: done, waiting, pending."""
    plan = {
        "session": session,
        "key": f"run-{word}",
        "input": {"about": word},
        "labels": {"about": word},
        "steps": [
            {"name": f"first {word}", "tool": "look", "args": {"q": word}},
            {"tool": "send", "args": [word]},
            {"tool": "pay", "args": {"to": word}, "requires_approval": True},
            {"tool": "last"},
        ],
    }
    run = api.post("/api/v1/runs", plan, headers={"Idempotency-Key": f"r{word}"})
    assert run.status_code == 201, run
    claim = {"worker": "w", "run": run.json["id"]}
    [first] = api.post("/api/v1/steps/claim", claim).json["steps"]
    effect = f"/api/v1/effects/e-{run.json['id']}"
    begun = api.post(
        f"{effect}/begin",
        {"step": first["step"], "request": {"to": word}},
        headers={"Idempotency-Key": f"b{run.json['id']}"},
    )
    assert begun.status_code == 200, begun
    ended = {"token": begun.json["token"], "result": {"sent": word}}
    assert api.post(f"{effect}/complete", ended).status_code == 200
    complete(api, first, {"found": word})
    [second] = api.post("/api/v1/steps/claim", claim).json["steps"]
    complete(api, second, {"found": word})
    signal = {"payload": {"who": word}}
    told = api.post(f"/api/v1/runs/{run.json['id']}/signals/paid", signal)
    assert told.status_code < 300, told
    steps = api.get(f"/api/v1/runs/{run.json['id']}/steps").json["items"]
    third = f"/api/v1/steps/{steps[2]['id']}/approve"
    approved = api.post(third, {"args": {"to": [word]}, "reason": word})
    assert approved.status_code == 200, approved
    [taken] = api.post("/api/v1/steps/claim", claim).json["steps"]
    item = {"step": taken["step"], "lease_token": taken["lease_token"]}
    error = {"code": "down", "message": f"no {word}", "details": {"x": word}}
    failed = api.post("/api/v1/steps/fail", {"items": [item | {"error": error}]})
    assert failed.json["items"][0].get("status") != "error", failed.json
    put = api.put(
        f"/api/v1/runs/{run.json['id']}/working-memory/draft",
        {"value": word},
    )
    assert put.status_code < 300, put
    return run.json["id"]


@pytest.mark.parametrize("scope", ["everywhere", "subject"])
def test_runs_are_forgotten_with_their_session(api, project, scope):
    word = f"{sentinel()}7"
    session = open_session(api)
    run = run_with(api, session, word)
    [seq] = say(api, session, f"It is about {word}")
    fact = remember(
        api, f"It is about {word}", source={"session": session, "seqs": [seq]}
    )
    places = places_with(word)
    assert {"agent_steps.args", "agent_runs.input"} <= set(places)
    assert any(place.startswith("redis:") for place in places)
    check_replay(project, session)
    if scope == "subject":
        done = api.post("/api/v1/subjects/u-100/forget", {})
        assert done.status_code == 200, done
        kept = {each["place"] for each in done.json["kept"]}
        assert kept == {"agent_events", "agent_effects"}
    else:
        forget(api, fact["id"], scope="everywhere")
    assert places_with(word) == []
    check_replay(project, session)
    shown = api.get(f"/api/v1/runs/{run}").json
    assert shown["state"] in ("waiting", "running", "queued")
    assert shown["step_count"] == 4


def test_an_answer_about_several_subjects_is_forgotten_for_each(api):
    word = sentinel()
    given = [
        {"fact": "Likes tea", "subject": "u-1"},
        {"fact": f"Badge is {word}", "subject": "u-2"},
        {"fact": f"Door code is {word}9", "subject": "u-3"},
    ]
    made = api.post(
        "/api/v1/memory/import", {"data": given}, headers={"Idempotency-Key": "many"}
    )
    assert made.status_code == 200, made
    items = [
        {"op": "correct", "id": f["id"], "expected_version": 1, "pinned": True}
        for f in made.json["items"]
    ]
    bulk = api.post(
        "/api/v1/memory/bulk", {"items": items}, headers={"Idempotency-Key": "bulk"}
    )
    assert bulk.status_code == 200, bulk
    forget(api, items[2]["id"])
    assert api.post("/api/v1/subjects/u-2/forget", {}).status_code == 200
    assert places_with(word) == []


def test_a_short_name_is_forgotten_too(api):
    name = f"Q{uuid4().hex[:2]}"
    remember(api, "Likes tea", subject=name)
    assert api.get(f"/api/v1/subjects/{name}/export").status_code == 200
    assert api.post(f"/api/v1/subjects/{name}/forget", {}).status_code == 200
    entries = api.get("/api/v1/audit", params={"action": "subject.exported"}).json
    assert entries["items"] and not any(e["after"] for e in entries["items"])


@pytest.mark.parametrize("name", ["two\nlines", "a/forget", "名前/🙂", "a?b#c%20d"])
def test_a_subject_of_any_name_is_forgotten(api, name):
    remember(api, "Likes tea", subject=name)
    path = f"/api/v1/subjects/{quote(name, safe='')}"
    assert len(api.get(f"{path}/export").json["facts"]) == 1
    assert api.post(f"{path}/consolidate").status_code == 200
    assert api.post(f"{path}/forget", {}).json["forgotten"] == 1


@pytest.mark.parametrize(
    "fact, said, gone",
    [
        ("护照号码是{}", "请记住我的护照号码是{}谢谢", "{}"),
        ("护照号码是{}", "好的，护照{}已记下。", "{}"),
        ("パスワードは{}です", "パスワードは{}ですよね", "{}"),
        ("猫のたまが大好き", "私は猫のたまが大好きですよ", "猫のたまが大好き"),
        ("住在杭州西湖区", "他说他住在杭州西湖区的房子里", "住在杭州西湖区"),
        ("ชอบกาแฟเย็น", "ฉันชอบกาแฟเย็นมาก", "ชอบกาแฟเย็น"),
        ("여권 번호는 {}", "여권 번호는 {}입니다", "{}"),
        ("رقم جوازي {}", "رقم جوازي {}، شكرا", "{}"),
    ],
)
def test_what_stands_in_running_text_is_found_in_any_script(api, fact, said, gone):
    code = f"E{uuid4().int % 10**8:08}"
    session = open_session(api)
    [seq] = say(api, session, said.format(code))
    made = remember(api, fact.format(code))
    forget(api, made["id"], scope="everywhere")
    assert places_with(gone.format(code)) == []


def test_a_promotion_under_way_brings_nothing_back(api, project, monkeypatch):
    from memory_app.promotion import services
    from tests.memory_app.test_promotion import promote, promotions

    word = sentinel()
    session = open_session(api, subject="u-gone")
    say(api, session, f"My badge number is {word}.", "I prefer tea.")
    close(api, session)
    read = services.EXTRACTORS["rules"]

    def forgotten_meanwhile(said, policy):
        found = read(said, policy)
        assert api.post("/api/v1/subjects/u-gone/forget", {}).status_code == 200
        return found

    monkeypatch.setitem(services.EXTRACTORS, "rules", forgotten_meanwhile)
    assert len(promotions(api, session)) == 1
    done = promote(api, session)
    assert done["result"]["dropped"] == {"forgotten": 2}
    assert facts(api, subject="u-gone") == [] and places_with(word) == []


def test_a_promotion_under_way_takes_nothing_from_blanked_events(
    api, project, monkeypatch
):
    from memory_app.promotion import services
    from tests.memory_app.test_promotion import promote

    session = open_session(api)
    [seq, _] = say(api, session, "I prefer tea. My name is Kim Lee.", "I prefer jam.")
    fact = remember(api, "Tea it is", source={"session": session, "seqs": [seq]})
    close(api, session)
    read = services.EXTRACTORS["rules"]

    def forgotten_meanwhile(said, policy):
        found = read(said, policy)
        forget(api, fact["id"], scope="everywhere")
        return found

    monkeypatch.setitem(services.EXTRACTORS, "rules", forgotten_meanwhile)
    assert promote(api, session)["result"]["dropped"] == {"forgotten": 2}
    assert texts(facts(api)) == ["Prefers jam"]


def test_approving_again_does_not_lift_a_correction(api, project):
    from memory_app.errors import SubjectForgotten
    from memory_app.policy import Policy

    fact = remember(api, "Prefers tea")
    path = f"/api/v1/memory/{fact['id']}"
    body = {"fact": "Prefers coffee", "expected_version": 1}
    assert api.patch(path, body).status_code == 200
    for version, move in ((2, "reject"), (3, "approve")):
        answer = api.post(f"{path}/{move}", {"expected_version": version})
        assert answer.status_code == 200, answer
    old = NewFact("u-100", "Prefers tea", session="s-0", seqs=(1,))
    old = replace(old, said_at=db_now() - timedelta(days=1))
    with pytest.raises(SubjectForgotten):
        promote_fact(project.id, old, actor="system", policy=Policy())


def test_what_was_corrected_and_rejected_then_stays_away(api, project):
    """A text that a fact had before, has again, and loses for good."""
    from memory_app.errors import SubjectForgotten
    from memory_app.policy import Policy

    fact = remember(api, "Prefers tea")
    path = f"/api/v1/memory/{fact['id']}"
    for version, text in ((1, "Prefers coffee"), (2, "Prefers tea")):
        body = {"fact": text, "expected_version": version}
        assert api.patch(path, body).status_code == 200
    forget(api, fact["id"])
    new = NewFact("u-100", "Prefers tea", session="s-9", seqs=(1,), said_at=db_now())
    with pytest.raises(SubjectForgotten):
        promote_fact(project.id, new, actor="system", policy=Policy())


@pytest.mark.parametrize("told_in", ["parent", "fork"])
def test_what_was_forgotten_does_not_come_back_from_a_fork(api, project, told_in):
    """The same event, read in the log of another session, in other words."""
    from memory_app.errors import SubjectForgotten
    from memory_app.policy import Policy

    parent = open_session(api)
    [seq] = say(api, parent, "I have a cat whose name is Tom.")
    fork = api.post(f"/api/v1/sessions/{parent}/fork", {"at_seq": seq}).json["id"]
    [own] = say(api, fork, "I have a dog too.")
    [other] = say(api, parent, "I have a bird too.")
    assert own == other
    first, second = (parent, fork) if told_in == "parent" else (fork, parent)
    source = {"session": first, "seqs": [seq, own]}
    fact = remember(api, "Has a cat named Tom", source=source)
    forget(api, fact["id"])
    again = NewFact("u-100", "Tom is the cat", session=second, seqs=(seq,))
    with pytest.raises(SubjectForgotten):
        promote_fact(project.id, again, actor="system", policy=Policy())
    apart = NewFact("u-100", "Has another pet", session=second, seqs=(own,))
    assert promote_fact(project.id, apart, actor="system", policy=Policy())


@pytest.mark.parametrize(
    "fact, said",
    [
        (
            "Lives with Zoë Müller-Ångström",
            "Zoe\u0308 Mu\u0308ller-A\u030angstro\u0308m",
        ),
        ("Lives with Zoe\u0308 Mu\u0308ller", "Zoë Müller"),
        ("番号は12345678", "１２３４５６７８"),
        ("Card number is 4111 1111 1111 1111", "4111-1111-1111-1111"),
        ("Card number is 4111 1111 1111 1111", "4111111111111111"),
        ("Phone is +47 900 00 001", "47-90000001"),
    ],
)
def test_however_it_is_spelled(api, project, fact, said):
    session = open_session(api)
    whole = fact.split(" is ")[-1] if said[-1].isdigit() else fact
    say(api, session, f"yes, {said}, that is so", f"so: {whole}")
    before = [event["created_at"] for event in events_of(api, session)]
    text = f"Lives with {said}" if fact.startswith("Lives") else said
    say(api, session, f"again: {text}.")
    made = remember(api, fact)
    forget(api, made["id"], scope="everywhere")
    contents = [
        event["payload"].get("content", "") for event in events_of(api, session)
    ]
    assert contents[-1] == "again: [forgotten]."
    assert [e["created_at"] for e in events_of(api, session)][: len(before)] == before
    check_replay(project, session)


def events_of(api, session):
    return api.get(f"/api/v1/sessions/{session}/events").json["items"]
