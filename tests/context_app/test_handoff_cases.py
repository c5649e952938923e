"""The cases of the area handoff, each named by its id, and what else they promise."""

import threading

import pytest
from django.db import connection

from context_app.tokens import estimate
from runs_app.handoffs import DEPTH_MAX
from runs_app.settling import settle_handoffs
from tests.context_app import legal
from tests.context_app.entries import expire
from tests.context_app.handoffs import (
    HANDOFFS,
    RUNS,
    accept,
    child,
    make_own,
    make_run,
    move,
    offer,
    run_state,
    step_of,
)
from tests.context_app.test_replay_cases import context, said
from tests.factories import (
    MISSING,
    SessionApi,
    answers,
    calls,
    error_of,
    fetch,
    make_session,
    says,
)
from tests.fixtures import Api

CLAIM = "/api/v1/steps/claim"
MEMORY = "/api/v1/memory"


def test_the_result_completes_the_step_that_waits(triage):
    made = offer(triage)
    assert step_of(triage, made)["state"] == "waiting"
    taken = accept(made)
    assert taken["bundle"]["task"] == "Check invoice A-1"
    result = {"summary": "The invoice is right.", "data": {"ok": True}}
    done = move(child(made), made, "result", **result)
    assert done.json["status"] == "completed"
    step = step_of(triage, made)
    assert (step["state"], step["result"]) == ("done", result)
    assert run_state(triage, made["child_run"]) == "succeeded"
    again = move(child(made), made, "result", **result)
    assert (again.status_code, again.json) == (200, done.json)
    other = move(child(made), made, "result", summary="Something else")
    assert other.status_code == 409


def test_a_result_needs_the_handoff_to_be_accepted(triage):
    made = offer(triage)
    answer = move(child(made), made, "result", summary="Done")
    assert error_of(answer)[:2] == (409, "handoff_not_accepted")


def test_ho_04_what_came_during_the_handoff_is_in_the_bundle(triage):
    triage.append("my bill is wrong", said("let me see"))
    made = offer(triage, context={"last_events": 5})
    triage.append(said("please also ask about the deposit"))
    taken = accept(made)
    assert "deposit" in str(taken["bundle"]["events"])
    assert taken["bundle"]["last_seq"] >= taken["bundle"]["events"][-1]["seqs"][0]
    own = make_own(made)
    assert "deposit" in "\n".join(legal.texts(context(own)["messages"]))
    triage.append(said("this came too late"))
    read = child(made).get(f"{HANDOFFS}/{made['id']}").json
    assert read["bundle"] == taken["bundle"], "it is fixed"


def test_ho_03_billing_sees_no_calls_it_could_repeat(triage):
    triage.append("hi", calls("q", "query_tasks"), answers("q", "3 open"))
    made = offer(
        triage,
        context={"last_events": 5},
        constraints={"tool_allowlist": ["refund"]},
    )
    accept(made)
    own = make_own(made)
    # By somebody whom the limits do not bind: it is told, and not as a call.
    make_own_session(triage, made).append(calls("c", "query_tasks"), answers("c"))
    for params in ({"tools": "refund"}, {}):
        found = context(own, **params)
        assert "query_tasks" in str(found["messages"])
        assert not any("tool_calls" in message for message in found["messages"])
    assert "tool_calls" in str(context(make_own_session(triage, made))["messages"])
    plan = {"plan_version": 1, "append": [{"tool": "query_tasks"}]}
    answer = child(made).post(f"{RUNS}/{made['child_run']}/plan", plan)
    assert answer.status_code == 422
    assert answer.json["errors"][0]["code"] == "tool_not_allowed"


def test_ho_03_a_call_of_a_tool_it_does_not_have_is_refused(triage):
    made = offer(triage, constraints={"tool_allowlist": ["refund"]})
    accept(made)
    own = make_own(made)
    before = own.get()["last_seq"]
    refused = own.append(says("let me look"), calls("c1", "query_tasks"))
    assert error_of(refused) == (
        403,
        "tool_not_allowed",
        "events[1].payload.name",
    )
    assert own.get()["last_seq"] == before, "a refused batch leaves nothing"
    assert own.append(calls("c1", "refund")).status_code == 201


def test_ho_03_a_step_of_such_a_tool_is_not_handed_out(triage):
    made = offer(triage, constraints={"tool_allowlist": ["refund"]})
    accept(made)
    # By the giving side, which the child's limits do not bind.
    make_run(make_own_session(triage, made), [{"tool": "query_tasks"}])
    body = {"worker": "billing-1", "max": 10}
    assert child(made).post(CLAIM, body).json["steps"] == []
    named = child(made).post(CLAIM, body | {"tools": ["refund", "query_tasks"]})
    assert error_of(named) == (403, "tool_not_allowed", "tools[1]")
    nested = child(made).post(
        "/api/v1/steps/complete",
        {
            "items": [{"step": made["step"], "lease_token": 1}],
            "claim_next": body | {"tools": ["query_tasks"]},
        },
    )
    assert error_of(nested)[1:] == ("tool_not_allowed", "claim_next.tools[0]")
    plan = {"plan_version": 1, "append": [{"tool": "refund", "depends_on": []}]}
    url = f"{RUNS}/{made['child_run']}/plan"
    assert child(made).post(url, plan).status_code == 200
    [step] = child(made).post(CLAIM, body).json["steps"]
    assert step["tool"] == "refund"


def make_own_session(session, made):
    """The child's session through the giving side's key."""
    return SessionApi(session.api, made["child_session"])


def test_ho_06_working_memories_are_apart(triage):
    triage.api.put(f"{triage.url}/working-memory/note", {"value": "private"})
    made = offer(triage, context={"last_events": 5})
    accept(made)
    own = make_own(made)
    written = own.api.put(f"{own.url}/working-memory/note", {"value": "from billing"})
    assert written.status_code in (200, 201)
    assert own.api.get(f"{triage.url}/working-memory/note").status_code == 404
    read = triage.api.get(f"{triage.url}/working-memory/note").json
    assert read["value"] == "private"


def test_ho_06_it_reads_no_memory_and_writes_none_by_default(triage):
    fact = {"subject": "ann", "fact": "Wants paper bills"}
    made = offer(triage)
    accept(made)
    assert child(made).get(MEMORY, params={"subject": "ann"}).status_code == 403
    assert error_of(child(made).post(MEMORY, fact))[:2] == (403, "missing_scope")
    listed = triage.api.get(MEMORY, params={"subject": "ann"}).json["items"]
    assert listed == []


def test_ho_06_a_fact_it_may_write_carries_its_agent(triage):
    triage.api.post(MEMORY, {"subject": "ann", "fact": "Owns a bicycle"})
    made = offer(triage, constraints={"may_remember": True})
    accept(made)
    key = child(made)
    written = key.post(MEMORY, {"fact": "Wants paper bills"})
    assert written.status_code == 201, written
    known = key.post(MEMORY, {"fact": "Owns a bicycle"})
    assert known.json["outcome"] == written.json["outcome"] == "remembered"
    assert set(known.json) == {"id", "subject", "fact", "source", "outcome"}
    fact = triage.api.get(f"{MEMORY}/{written.json['id']}").json
    assert fact["subject"] == "ann"
    assert fact["source"] == {
        "kind": "agent",
        "session": made["child_session"],
        "agent": "billing",
        "seqs": [],
    }
    for body in (
        {"subject": "bob", "fact": "x"},
        {"fact": "x", "pinned": True},
        {"fact": "x", "source": {"kind": "staff"}},
        {"fact": "x", "source": {"session": triage.id}},
    ):
        assert key.post(MEMORY, body).status_code in (403, 422), body
    for path in (MEMORY, f"{MEMORY}/recall", f"{MEMORY}/{fact['id']}"):
        answer = key.get(path, params={"subject": "ann", "q": "bicycle"})
        assert answer.status_code == 403, path


def test_ho_06_who_may_not_write_memory_cannot_hand_that_on(project, make_key):
    api = Api(make_key(["sessions:write", "sessions:read", "runs:write"]))
    session = make_session(api, subject="ann")
    session.run = make_run(session)
    body = {"agent": "b", "task": "t", "constraints": {"may_remember": True}}
    answer = api.post(f"{RUNS}/{session.run}/handoffs", body)
    assert error_of(answer)[:2] == (403, "missing_scope")


def test_ho_08_the_bundle_obeys_its_budget(triage):
    triage.append(*["word " * 200] * 50)
    made = offer(triage, context={"last_events": 50, "budget_tokens": 3000})
    bundle = accept(made)["bundle"]
    assert bundle["tokens"] <= 3000
    carried = [bundle["task"], *legal.texts(bundle["events"])]
    assert sum(estimate(text) for text in carried) <= 3000
    [prompt] = make_own(made).payloads(types="message.user")
    assert estimate(prompt["content"]) <= bundle["tokens"]
    assert len(bundle["events"]) + len(bundle["left_out"]) == 50
    reference = bundle["left_out"][0]["reference"]
    assert triage.api.get(reference).json["items"][0]["type"] == "message.user"


def test_ho_08_a_task_over_the_budget_is_refused(triage):
    body = {
        "agent": "billing",
        "task": "word " * 500,
        "context": {"budget_tokens": 100},
    }
    answer = triage.api.post(f"{RUNS}/{triage.run}/handoffs", body)
    assert error_of(answer) == (422, "budget_too_small", "context.budget_tokens")
    assert triage.api.get(f"{RUNS}/{triage.run}/handoffs").json["items"] == []


def test_the_bundle_holds_what_was_named(triage):
    fact = triage.api.post(
        "/api/v1/memory", {"subject": "ann", "fact": "Prefers invoices as PDF"}
    ).json
    triage.put_state({"order": {"id": 7}, "secret": 1}, 0)
    triage.api.put(f"{triage.url}/working-memory/draft", {"value": [1, 2]})
    triage.append(says("the invoice is A-1"))
    seq = triage.get()["last_seq"]
    context_ = {
        "facts": [fact["id"]],
        "state_keys": ["order"],
        "working_memory": ["draft"],
        "events": [seq],
        "inline": {"hint": "look at page 2"},
    }
    bundle = accept(offer(triage, context=context_))["bundle"]
    assert [f["fact"] for f in bundle["relevant_facts"]] == ["Prefers invoices as PDF"]
    assert bundle["state"] == {"order": {"id": 7}}
    assert bundle["working_memory"] == {"draft": [1, 2]}
    assert bundle["events"][0]["content"] == "the invoice is A-1"
    assert bundle["inline"] == {"hint": "look at page 2"}
    assert bundle["left_out"] == []


def test_wm_04_what_is_not_there_any_more_is_named(triage, redis):
    """Expired, forgotten or never there: said, not told as empty."""
    url = f"{triage.url}/working-memory"
    for key in ("a", "b"):
        triage.api.put(f"{url}/{key}", {"value": key, "ttl_s": 60})
    expire(redis, triage.id, "a")
    context_ = {
        "working_memory": ["a", "b", "c"],
        "state_keys": ["order"],
        "facts": [MISSING],
        "events": [999],
    }
    bundle = accept(offer(triage, context=context_))["bundle"]
    assert bundle["working_memory"] == {"b": "b"}
    assert [(each["kind"], each["why"]) for each in bundle["left_out"]] == [
        ("fact", "not_found"),
        ("state", "not_found"),
        ("working_memory", "expired"),
        ("working_memory", "not_found"),
        ("event", "no_message"),
    ]


def test_pictures_are_named_and_not_spelt_out(triage):
    picture = {"type": "image_url", "image_url": {"url": f"data:,{'A' * 50_000}"}}
    said_ = {"type": "text", "text": "see here"}
    triage.append(says([said_, picture]))
    made = offer(triage, context={"last_events": 1})
    bundle = accept(made)["bundle"]
    assert bundle["events"][0]["content"] == [said_, picture]
    [prompt] = make_own(made).payloads(types="message.user")
    assert "- user: see here; [image_url]" in prompt["content"]
    assert estimate(prompt["content"]) <= bundle["tokens"]


@pytest.mark.parametrize("budget", [60, 90, 150, 400, 1500])
def test_ho_08_the_prompt_is_within_every_budget(triage, budget):
    fact = {"subject": "ann", "fact": "Prefers invoices as PDF"}
    triage.api.post(MEMORY, fact)
    triage.put_state({"order": {"id": 7, "lines": [1, 2, 3]}}, 0)
    triage.api.put(f"{triage.url}/working-memory/draft", {"value": "x y z"})
    triage.append("hi", calls("c", arguments={"n": 1}), answers("c", {"a": 1}), "ok?")
    made = offer(
        triage,
        context={
            "recall": "invoices",
            "state_keys": ["order"],
            "working_memory": ["draft"],
            "last_events": 10,
            "inline": {"hint": "page 2"},
            "budget_tokens": budget,
        },
        constraints={"max_tool_calls": 5, "tool_allowlist": ["refund", "look_up"]},
    )
    bundle = accept(made)["bundle"]
    [prompt] = make_own(made).payloads(types="message.user")
    assert estimate(prompt["content"]) <= bundle["tokens"] <= budget
    assert prompt["content"].startswith("Check invoice A-1")
    assert all(each["reference"] for each in bundle["left_out"])


def test_facts_are_suggested_for_a_task(triage):
    for fact in ("Prefers invoices as PDF", "Owns a bicycle"):
        triage.api.post("/api/v1/memory", {"subject": "ann", "fact": fact})
    answer = triage.api.post(
        f"{RUNS}/{triage.run}/handoffs/suggest", {"task": "send invoices", "limit": 1}
    )
    assert [item["fact"] for item in answer.json["items"]] == [
        "Prefers invoices as PDF"
    ]


def test_own_09_one_of_two_agents_gets_it(triage):
    made = offer(triage)
    codes = []

    def take(name):
        codes.append(move(child(made), made, "accept", by=name).status_code)
        connection.close()

    threads = [threading.Thread(target=take, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [200, 409]
    winner = child(made).get(f"{HANDOFFS}/{made['id']}").json["accepted_by"]
    assert accept(made, by=winner)["accepted_by"] == winner


def test_own_09_a_ring_of_agents_is_cut(triage):
    session, made = triage, None
    for depth in range(1, DEPTH_MAX + 1):
        made = offer(session, agent="AB"[depth % 2])
        assert made["depth"] == depth
        session = make_own(made)
        session.run = made["child_run"]
    body = {"agent": "A", "task": "again"}
    answer = session.api.post(f"{RUNS}/{session.run}/handoffs", body)
    assert error_of(answer)[:2] == (409, "handoff_too_deep")
    tree = triage.api.get(f"{RUNS}/{triage.run}/tree").json
    for _ in range(DEPTH_MAX):
        [tree] = tree["children"]
    assert tree["run"] == made["child_run"]
    assert tree["children"] == []


def test_declining_fails_the_step_and_says_why(triage):
    made = offer(triage)
    answer = move(child(made), made, "decline", reason="not mine")
    assert (answer.json["status"], answer.json["reason"]) == ("declined", "not mine")
    step = step_of(triage, made)
    assert (step["state"], step["error"]["code"]) == ("failed", "handoff_declined")
    assert run_state(triage, made["child_run"]) == "cancelled"


def test_a_handoff_expires(triage, clock):
    made = offer(triage, constraints={"timeout_s": 60})
    clock.advance(seconds=61)
    answer = move(child(made), made, "accept", by="late")
    assert error_of(answer)[:2] == (409, "handoff_ended")
    assert settle_handoffs() >= 0
    read = triage.api.get(f"{HANDOFFS}/{made['id']}").json
    assert read["status"] == "expired"
    assert step_of(triage, made)["state"] == "failed"


def test_cancelling_the_parent_cancels_the_children(triage):
    made = offer(triage)
    own = make_own(made)
    own.run = made["child_run"]
    grandchild = offer(own, agent="archive")
    assert triage.api.post(f"{RUNS}/{triage.run}/cancel", {}).status_code == 200
    assert run_state(triage, made["child_run"]) == "cancelled"
    assert run_state(triage, grandchild["child_run"]) == "cancelled"
    assert run_state(triage) == "cancelled"
    for each in (made, grandchild):
        read = triage.api.get(f"{HANDOFFS}/{each['id']}").json
        assert read["status"] == "cancelled"
    answer = move(triage.api, made, "result", summary="late")
    assert error_of(answer)[:2] == (409, "handoff_ended")


def test_a_child_has_no_tools_beyond_its_parents(api):
    session = make_session(api)
    session.run = make_run(
        session, [{"tool": "refund"}], budget={"tool_allowlist": ["refund"]}
    )
    body = {"agent": "b", "task": "t", "constraints": {"tool_allowlist": ["wire"]}}
    answer = api.post(f"{RUNS}/{session.run}/handoffs", body)
    assert error_of(answer)[1:] == ("invalid", "constraints.tool_allowlist")
    made = offer(session)
    run = child(made).get(f"{RUNS}/{made['child_run']}").json
    assert run["budget"]["tool_allowlist"] == ["refund"]


def test_a_retried_offer_is_one_handoff_with_the_same_token(triage):
    body = {"agent": "billing", "task": "Check invoice A-1"}
    url = f"{RUNS}/{triage.run}/handoffs"
    first = triage.api.post(url, body, headers={"Idempotency-Key": "offer-1"})
    again = triage.api.post(url, body, headers={"Idempotency-Key": "offer-1"})
    assert first.status_code == 201
    assert again.json == first.json
    assert again.headers["Idempotency-Replayed"] == "true"
    assert len(triage.api.get(url).json["items"]) == 1
    stored = fetch("SELECT body FROM access_idempotency WHERE body LIKE %s", "%token%")
    assert first.json["token"] not in str(stored)


def test_another_project_sees_no_handoff(triage, other_api):
    made = offer(triage)
    assert other_api.get(f"{HANDOFFS}/{made['id']}").status_code == 404
    assert move(other_api, made, "accept", by="x").status_code == 404


def test_what_is_too_much_for_a_handoff_is_told_by_its_field(triage, settings):
    settings.STEP_RESULT_MAX_BYTES = 5000
    much = "x" * 5000
    body = {"agent": "b", "task": "t", "context": {"inline": much}}
    answer = triage.api.post(f"{RUNS}/{triage.run}/handoffs", body)
    assert error_of(answer) == (413, "result_too_large", "context.inline")
    made = offer(triage)
    accept(made)
    answer = move(child(made), made, "result", summary="s", data=much)
    assert error_of(answer) == (413, "result_too_large", "data")
    assert answer.json["limit_bytes"] == 5000
    assert step_of(triage, made)["state"] == "waiting"
    answer = move(child(made), made, "result", summary="s", data="x" * 4000)
    assert answer.status_code == 200
    assert len(step_of(triage, made)["result"]["data"]) == 4000
