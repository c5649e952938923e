"""Getting a context: budget, tools, facts, plan, working memory, cost."""

import pytest

from context_app.tokens import estimate
from tests.context_app import legal
from tests.context_app.entries import expire
from tests.context_app.test_replay_cases import context, said
from tests.factories import answers, calls, error_of, make_session, says
from tests.fixtures import Api
from tests.queries import CallQueries

FORMS = ["neutral", "openai", "openai_responses", "anthropic"]


def get(session, **params):
    return session.api.get(f"{session.url}/context", params=params)


def test_a_budget_too_small_says_the_least_that_works(session):
    session.append("word " * 500, said("word " * 500), "and now?")
    answer = get(session, budget_tokens=20)
    assert error_of(answer) == (422, "budget_too_small", "budget_tokens")
    least = answer.json["least_tokens"]
    assert get(session, budget_tokens=least).status_code == 200
    assert get(session, budget_tokens=least - 1).status_code == 422


@pytest.mark.parametrize("form", FORMS)
def test_a_call_and_its_result_are_in_or_out_together(session, form):
    for n in range(30):
        session.append(calls(f"a{n}"), calls(f"b{n}"))
        session.append(answers(f"b{n}", "row " * 20), answers(f"a{n}", "row " * 20))
    session.append("done?")
    found = context(session, form, budget_tokens=900)
    seqs = found["manifest"]["seqs"]
    assert seqs[-1] == 121 and len(seqs) > 8
    assert (len(seqs) - 1) % 4 == 0, "calls made in parallel stay together"


def test_ho_03_calls_of_other_tools_are_told_as_text(session):
    session.append(
        "I want my money back",
        calls("t1", "query_tasks", arguments={"user": "ann"}),
        answers("t1", "3 open"),
        calls("t2", "refund"),
        answers("t2", "40 EUR"),
    )
    for form in FORMS:
        found = context(session, form, tools="refund")
        assert "query_tasks" in "\n".join(legal.texts(found["messages"]))
    found = context(session, "openai", tools="refund")
    names = [
        call["function"]["name"]
        for message in found["messages"]
        for call in message.get("tool_calls", [])
    ]
    assert names == ["refund"]
    assert found["manifest"]["told_as_text"] == [{"seq": 2, "name": "query_tasks"}]
    assert found["messages"][1]["content"] == (
        '[Used the tool query_tasks with {"user":"ann"}. Its result: 3 open]'
    )


def test_the_system_text_stands_apart_where_the_form_has_it_so(session):
    session.append({"type": "message.system", "payload": {"content": "Be kind"}}, "hi")
    assert context(session, "anthropic")["system"] == "Be kind"
    assert context(session, "openai")["messages"][0]["role"] == "system"


def test_instructions_survive_a_long_conversation(session):
    session.append({"type": "message.system", "payload": {"content": "Be kind"}})
    session.append(*["word " * 50] * 100)
    assert context(session, budget_tokens=500)["messages"][0]["content"] == "Be kind"


def test_what_is_asked_to_be_kept_is_there(session):
    session.append("the code is 4711", *["word " * 50] * 100)
    found = context(session, budget_tokens=500, keep="1")
    assert "the code is 4711" in legal.texts(found["messages"])
    assert error_of(get(session, keep="999")) == (422, "seq_not_found", "keep")
    assert get(session, keep="x").status_code == 422


def test_pinned_facts_and_corrections_are_told_and_others_recalled(api):
    session = make_session(api, subject="ann")
    for fact in (
        {"fact": "Never call before noon", "pinned": True},
        {"fact": "Her name is spelt Anne", "kind": "correction"},
        {"fact": "Likes window seats"},
        {"fact": "Owns a bicycle"},
    ):
        body = {"subject": "ann", **fact}
        assert api.post("/api/v1/memory", body).status_code == 201
    session.append(*["word " * 50] * 100)
    found = context(session, budget_tokens=600)
    note = found["messages"][0]["content"]
    assert "Never call before noon" in note and "spelt Anne" in note
    assert "window seats" not in note
    assert {f["why"] for f in found["manifest"]["facts"]} == {"pinned or corrected"}
    asked = context(session, budget_tokens=600, recall="which seats does she like")
    assert "window seats" in asked["messages"][0]["content"]


def test_a_key_without_memory_gets_no_facts(api, make_key):
    session = make_session(api, subject="ann")
    body = {"subject": "ann", "fact": "Never call", "pinned": True}
    assert api.post("/api/v1/memory", body).status_code == 201
    session.append("hi")
    reader = Api(make_key(["sessions:read"]))
    found = reader.get(f"{session.url}/context")
    assert "Never call" not in str(found.json["messages"])
    assert "memory:read" in found.json["manifest"]["facts_left_out"]
    asked = reader.get(f"{session.url}/context", params={"recall": "x"})
    assert (asked.status_code, asked.json["code"]) == (403, "missing_scope")
    bound = Api(make_key(["all"], session_id=session.id))
    assert "Never call" not in str(bound.get(f"{session.url}/context").json)


def test_the_plan_under_way_is_told(session):
    session.append("go")
    steps = [{"tool": "look_up"}, {"tool": "send_mail"}]
    made = session.api.post("/api/v1/runs", {"session": session.id, "steps": steps})
    assert made.status_code == 201, made
    found = context(session)
    assert "[pending] send_mail" in found["messages"][0]["content"]
    assert found["manifest"]["plan"] == {"run": made.json["id"]}
    assert context(session, plan="false")["manifest"]["plan"] is None


def test_wm_04_expired_working_memory_is_named(session, redis):
    session.append("go")
    session.put_state({"n": 4}, 0)
    for key, ttl in (("a", 5), ("b", 60)):
        body = {"value": f"{key.upper()}!", "ttl_s": ttl}
        session.api.put(f"{session.url}/working-memory/{key}", body)
    before = session.get("/state")
    assert (
        '- a: "A!"' in context(session, working_memory="a,b")["messages"][0]["content"]
    )
    expire(redis, session.id, "a")
    found = context(session, working_memory="a,b,nothing")
    told = found["messages"][0]["content"]
    assert "- a: (expired)" in told and "A!" not in told
    assert '- b: "B!"' in told
    assert "- nothing: (not set)" in told
    assert found["manifest"]["working_memory"] == [
        {"key": "a", "status": "expired"},
        {"key": "b", "status": "present"},
        {"key": "nothing", "status": "absent"},
    ]
    assert session.get("/state") == before
    assert len(session.events()) == 2, "the log tells all that it did"


def test_wm_04_a_step_that_needs_both_is_told_which_is_gone(api, redis):
    session = make_session(api)
    body = {"session": session.id, "steps": [{"tool": "pay"}]}
    run = api.post("/api/v1/runs", body).json["id"]
    url = f"/api/v1/runs/{run}/working-memory"
    for key, ttl in (("a", 5), ("b", 60)):
        api.put(f"{url}/{key}", {"value": key, "ttl_s": ttl})
    [step] = api.post("/api/v1/steps/claim", {"worker": "w", "run": run}).json["steps"]
    expire(redis, run, "a")
    assert api.get(f"{url}/b").json["value"] == "b"
    gone = api.get(f"{url}/a")
    assert (gone.status_code, gone.json["code"]) == (404, "entry_expired")
    done = {"step": step["step"], "lease_token": step["lease_token"], "result": 1}
    [answer] = api.post("/api/v1/steps/complete", {"items": [done]}).json["items"]
    assert answer["ok"], "the run goes on, and its log is whole"


def test_wm_09_working_memory_of_another_session_is_not_seen(api):
    one, two = make_session(api), make_session(api)
    api.put(f"{one.url}/working-memory/otp", {"value": "481516"})
    two.append("go")
    assert "481516" not in str(context(two, working_memory="otp"))


def test_another_project_has_no_context_of_it(session, other_api):
    session.append("secret")
    answer = other_api.get(f"{session.url}/context")
    assert (answer.status_code, answer.json["code"]) == (404, "session_not_found")


def test_a_fork_shows_the_call_as_it_was_then(session):
    session.append("go", calls("c1"), "and?")
    fork = session.fork(3)
    session.append(answers("c1", "from the parent"))
    fork.append(answers("c1", "from the fork"))
    assert "from the fork" in str(context(fork))
    assert "from the parent" not in str(context(fork))
    assert "from the parent" in str(context(session))


@pytest.mark.parametrize("text", ["a", "some words here", "漢字かな", "x1y2Z3", "\n\n"])
def test_the_estimate_counts_no_less_than_words(text):
    assert estimate(text) >= len(text.split())
    assert estimate("") == 0


def test_a_tokenizer_that_is_not_there_is_a_clear_error(session, settings):
    settings.TOKENIZER = "/nowhere/tokenizer.json"
    session.append("hi")
    answer = get(session)
    assert (answer.status_code, answer.json["code"]) == (503, "tokenizer_unavailable")


def queries_for(session, budget):
    """How many queries a context takes, without those that check the caller's key."""
    with CallQueries() as captured:
        assert get(session, budget_tokens=budget, format="openai").status_code == 200
    return sum("agent_" in query["sql"] for query in captured)


def test_a_long_log_costs_as_many_queries_as_a_short_one(api):
    short, long = make_session(api), make_session(api)
    for session, count in ((short, 2), (long, 20)):
        for _ in range(count):
            session.append(*[says("word " * 20), said("word " * 20)] * 50)
    assert queries_for(long, 2000) == queries_for(short, 2000) <= 8
