"""The cases of the area compaction, each named by its id."""

import threading

import pytest
from django.db import connection

from tests.context_app import legal
from tests.context_app.summariser import fails, lists_seqs, says, summariser
from tests.context_app.test_replay_cases import context, said
from tests.factories import answers, calls, make_session


@pytest.fixture
def llm(settings):
    """llm(script) -> a summariser that the settings name, until the test ends."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def start(script):
            stub = stack.enter_context(summariser(script))
            settings.LLM_URL, settings.LLM_MODEL = stub.url, "stub"
            return stub

        yield start


def talk(session, turns, text="hello"):
    """Append `turns` turns of one user's message and one answer each."""
    for turn in range(turns):
        session.append(f"{text} {turn}", said(f"answer {turn}"))


def compact(session, **body):
    answer = session.api.post(f"{session.url}/compact", body)
    assert answer.status_code in (200, 201), answer
    return answer.json


def refused(session, **body):
    answer = session.api.post(f"{session.url}/compact", body)
    assert answer.status_code >= 400, answer
    return answer.status_code, answer.json["code"], answer.json


def covered(found):
    """How often each seq is in the context: by a summary, or itself."""
    times = dict.fromkeys(found["manifest"]["seqs"], 1)
    for each in found["manifest"]["covered"]:
        for seq in range(each["from_seq"], each["up_to_seq"] + 1):
            if seq not in each["whole"]:
                times[seq] = times.get(seq, 0) + 1
    return times


def test_a_given_summary_stands_for_its_range(session):
    talk(session, 10)
    done = compact(session, up_to_seq=12, summary="They said hello six times.")
    assert (done["status"], done["method"], done["seq"]) == ("compacted", "given", 21)
    found = context(session)
    assert found["manifest"]["seqs"] == list(range(13, 21))
    assert "They said hello six times." in found["messages"][0]["content"]
    assert found["manifest"]["covered"] == [
        {"by": 21, "from_seq": 1, "up_to_seq": 12, "whole": [], "summary": "whole"}
    ]
    assert len(session.events()) == 21, "one event more, and the others untouched"


@pytest.mark.parametrize(
    "text, value",
    [
        ("my account is 88776655", "88776655"),
        ("order #1042 please", "#1042"),
        ("it is W-77K", "W-77K"),
        ("write to ann@example.com", "ann@example.com"),
        ("refund $1,200.50", "$1,200.50"),
        ("refund 40 EUR", "40 EUR"),
        ("on 2024-05-20", "2024-05-20"),
        ("on May 20th", "May 20th"),
        ("call +49 170 1234567", "+49 170 1234567"),
        ("DE89 3704 0044 0532 0130 00", "DE89"),
    ],
)
def test_a_summary_that_loses_an_identifier_is_refused(session, text, value):
    session.append("hello", text, said("noted"))
    status, code, problem = refused(session, up_to_seq=3, summary="They talked.")
    assert (status, code) == (409, "summary_loses")
    assert value in [each["value"] for each in problem["lost"]]
    assert {2} == {seq for each in problem["lost"] for seq in each["seqs"]}
    assert len(session.events()) == 3
    assert compact(session, up_to_seq=3, summary=f"They said: {text}.")["lost"] == []


def test_the_same_thing_in_other_words_is_no_loss(session):
    session.append("pay $1,200.50 by May 20th for ORDER-77a", said("yes"))
    told = "1200.5 dollars until 2026-05-20, order-77A"
    assert compact(session, up_to_seq=2, summary=told)["lost"] == []


def test_an_identifier_within_a_tool_result_counts(session):
    result = answers("c", '{"reservation": {"id": "ZFA04Y", "total": 320}}')
    session.append("look it up", calls("c"), result, said("done"))
    _, code, problem = refused(session, up_to_seq=4, summary="search was used.")
    assert (code, problem["lost"][0]["value"]) == ("summary_loses", "ZFA04Y")
    done = compact(session, up_to_seq=4, summary="search was used.", keep=[3])
    assert done["keep"] == [2, 3], "a call and its result stay together"
    assert context(session)["manifest"]["seqs"] == [2, 3]


def test_a_forced_summary_says_what_it_lost(session):
    session.append("my account is 88776655")
    done = compact(session, up_to_seq=1, summary="They talked.", force=True)
    assert done["lost"] == [{"kind": "number", "value": "88776655", "seqs": [1]}]
    assert session.payloads()[-1]["lost"] == done["lost"]


def test_an_open_call_must_be_told(session):
    session.append("go", calls("c1", "book_flight"), "and?")
    _, code, problem = refused(session, up_to_seq=3, summary="They talked.")
    assert code == "summary_loses"
    assert problem["lost"] == [
        {"kind": "open_call", "value": "book_flight", "seqs": [2]}
    ]
    compact(session, up_to_seq=3, summary="book_flight was called.")
    assert "book_flight" in str(context(session)["messages"])


@pytest.mark.parametrize("summary", ["", "  \n"])
def test_an_empty_summary_changes_nothing(session, summary):
    talk(session, 3)
    status, _, _ = refused(session, up_to_seq=4, summary=summary)
    assert status == 422
    assert len(session.events()) == 6


def test_the_rule_keeps_beginning_decisions_and_end(session):
    session.append("I want to move to Lisbon", said("Noted"))
    talk(session, 30, "chat")
    session.append("Actually, I decided on Porto", said("Porto it is"))
    talk(session, 30, "more chat")
    done = compact(session, method="extract", keep_last=2)
    assert (done["status"], done["method"]) == ("compacted", "extract")
    for text in ("move to Lisbon", "decided on Porto", "more chat 27"):
        assert text in done["summary"]
    assert (
        compact(make_like(session), method="extract", keep_last=2)["summary"]
        == (done["summary"])
    )


def make_like(session):
    """Another session with the same log."""
    like = make_session(session.api)
    like.append(
        *[
            {"type": e["type"], "payload": e["payload"]}
            for e in session.events(limit=1000)
            if not e["type"].startswith("context.")
        ]
    )
    return like


def test_cm_03_the_summariser_never_sees_an_orphan(session, llm, settings):
    settings.LLM_WINDOW_TOKENS = 4_000
    stub = llm(lists_seqs)
    session.append("begin")
    for n in range(40):
        result = answers(f"c{n}", "row " * 300)
        session.append(calls(f"c{n}", arguments={"n": "x " * 50}), result)
    done = compact(session, keep_last=0, method="llm")
    assert done["status"] == "compacted"
    assert stub.refused == 0
    assert sorted(s for seqs in stub.seqs for s in seqs) == list(range(1, 82))
    assert len(stub.requests) > 1


def test_cm_03_a_refusal_ends_within_three_tries(session, llm):
    stub = llm(lambda *_: (400, {"error": {"message": "too long"}}))
    talk(session, 20)
    done = compact(session, method="llm", fallback=False)
    assert (done["status"], done["seq"]) == ("failed", None)
    assert "refused" in done["reason"]
    assert len(stub.requests) <= 3
    assert len(session.events()) == 40


def test_a_summariser_that_hangs_is_left_when_the_time_is_up(session, llm, settings):
    settings.LLM_COMPACT_SECONDS = 0.5
    released = threading.Event()

    def hangs(_, body):
        released.wait(30)
        return says("Too late.")

    stub = llm(hangs)
    talk(session, 10)
    done = compact(session, method="llm")
    released.set()
    assert done["status"] == "fallback"
    assert len(stub.requests) <= 1  # none, if the machine was busy for so long
    assert "took longer than 0.5 s" in done["reason"]


def test_summaries_take_half_the_threads_at_most(session, llm, settings):
    settings.WEB_THREADS = 2
    begun, released = threading.Event(), threading.Event()

    def waits(stub, body):
        begun.set()
        assert released.wait(30)
        return lists_seqs(stub, body)

    llm(waits)
    talk(session, 10)
    other = make_like(session)
    found = []

    def first():
        found.append(compact(other, method="llm"))
        connection.close()

    thread = threading.Thread(target=first)
    thread.start()
    assert begun.wait(30)
    answer = session.api.post(f"{session.url}/compact", {"method": "llm"})
    assert (answer.status_code, answer.json["code"]) == (503, "summariser_busy")
    assert answer.headers["Retry-After"] == "2"
    assert compact(session, method="extract")["status"] == "compacted"
    released.set()
    thread.join()
    assert [each["status"] for each in found] == ["compacted"]


@pytest.mark.parametrize("script", [fails, lambda *_: says(""), lambda *_: (200, [])])
def test_cm_04_a_failing_summariser_is_told_and_the_budget_holds(session, llm, script):
    stub = llm(script)
    talk(session, 50, "word " * 30)
    found = context(session, budget_tokens=1000)
    assert found["manifest"]["tokens"]["total"] <= 1000
    [left] = found["manifest"]["left_out"]
    fetched = session.api.get(left["fetch"]).json["items"]
    assert len(fetched) == left["events"] == left["to_seq"] - left["from_seq"] + 1
    assert sorted(found["manifest"]["seqs"] + [e["seq"] for e in fetched]) == list(
        range(1, 101)
    )
    assert found["messages"][1]["role"] == "user", "whole turns are left out"
    done = compact(session)
    assert (done["status"], done["method"]) == ("fallback", "llm")
    assert done["reason"]
    assert 1 <= len(stub.requests) <= 3
    after = context(session, budget_tokens=1000)
    assert after["manifest"]["tokens"]["total"] <= 1000


def test_cm_04_without_fallback_nothing_changes(session, llm):
    llm(fails)
    talk(session, 10)
    done = compact(session, fallback=False)
    assert (done["status"], done["seq"]) == ("failed", None)
    assert len(session.events()) == 20
    assert context(session)["manifest"]["covered"] == []


METHODS = [
    {"method": "extract"},
    {"method": "llm"},
    {"method": "given", "summary": "A rate table was looked up.", "up_to_seq": 3},
]


@pytest.mark.parametrize("options", METHODS)
def test_cm_06_tool_messages_are_kept_where_asked(session, llm, options):
    llm(lambda *_: says("Nothing to tell."))
    session.append("rates?", calls("r", "rate_table"), answers("r", "child: 50"))
    session.append("and for children?")
    if options["method"] != "given":
        options = {**options, "keep_last": 1}
    done = compact(session, preserve_tools=True, **options)
    assert done["keep"] == [2, 3]
    assert "child: 50" in legal.texts(context(session)["messages"])


@pytest.mark.parametrize(
    "options, path",
    [
        (
            {"method": "given", "summary": "x", "up_to_seq": 2, "keep_last": 1},
            "keep_last",
        ),
        ({"summary": "x", "up_to_seq": 2, "summary_tokens": 100}, "summary_tokens"),
        ({"method": "extract", "force": True}, "force"),
        ({"method": "extract", "summary": "x"}, "summary"),
        ({"method": "given", "up_to_seq": 2}, "summary"),
        ({"summary": "x"}, "up_to_seq"),
        ({"method": "llm"}, "method"),
        ({"up_to_seq": 2, "keep_last": 1}, "keep_last"),
        ({"up_to_seq": 99}, "up_to_seq"),
        ({"up_to_seq": 2, "keep": [3]}, "keep"),
        ({"method": "sliding"}, "method"),
    ],
)
def test_cm_06_an_option_that_cannot_be_honoured_is_refused(session, options, path):
    talk(session, 2)
    status, _, problem = refused(session, **options)
    assert status == 422
    assert problem["errors"][0]["path"] == path
    assert len(session.events()) == 4


def test_cm_07_what_comes_meanwhile_is_untouched(session, llm):
    talk(session, 50)

    def slow(_, body):
        answered = append_in_thread(session, 25)
        assert answered == [201] * 25
        return lists_seqs(_, body)

    stub = llm(slow)
    done = compact(session, method="llm", keep_last=0)
    assert stub.seqs == [list(range(1, 101))]
    assert (done["from_seq"], done["up_to_seq"]) == (1, 100)
    found = context(session)
    assert found["manifest"]["seqs"] == list(range(101, 126))
    assert "I was given" in found["messages"][0]["content"]


def append_in_thread(session, count):
    """Append from another connection, while the caller waits for the answer."""
    statuses = []

    def work():
        for n in range(count):
            statuses.append(session.append(f"meanwhile {n}").status_code)
        connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return statuses


def test_cm_07_a_session_closed_meanwhile_keeps_its_log(session, llm):
    talk(session, 10)

    def closes(_, body):
        def close():
            session.api.post(f"{session.url}/close", {})
            connection.close()

        thread = threading.Thread(target=close)
        thread.start()
        thread.join()
        return lists_seqs(_, body)

    llm(closes)
    status, code, _ = refused(session, method="llm")
    assert (status, code) == (409, "session_closed")
    assert context(session)["manifest"]["covered"] == []


def test_cm_07_two_compactions_at_once_are_one(session, llm):
    talk(session, 10)

    def compacts(_, body):
        def other():
            compact(session, up_to_seq=4, summary="By another.")
            connection.close()

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return lists_seqs(_, body)

    llm(compacts)
    status, code, _ = refused(session, method="llm")
    assert (status, code) == (409, "compacted_meanwhile")
    [only] = context(session)["manifest"]["covered"]
    assert only["up_to_seq"] == 4


def test_cm_08_each_seq_is_covered_exactly_once(session, llm):
    stub = llm(lists_seqs)
    given = set()
    conversation = 0
    for round_ in range(9):
        talk(session, 30 if round_ == 0 else 20)
        conversation = session.get()["last_seq"]
        compact(session, keep_last=10, method="llm")
        new = {s for seqs in stub.seqs for s in seqs}
        assert not given & (new - given)
        assert sum(len(seqs) for seqs in stub.seqs) == len(new), "none was given twice"
        given = new
        times = covered(context(session))
        marks = {e["seq"] for e in session.events(types="context.*", limit=1000)}
        for seq in range(1, conversation + 1):
            assert times.get(seq) == 1 or seq in marks, (round_, seq)
    assert len(context(session)["manifest"]["covered"]) <= 6


def test_cm_10_a_huge_message_starts_no_loop(session, llm):
    stub = llm(lists_seqs)
    session.append("2026-01-01 ERROR code E4711 at line 17\n" * 5000)
    for n in range(10):
        session.append(f"and now? {n}", said(f"still looking {n}"))
        found = context(session, budget_tokens=2000)
        assert found["manifest"]["tokens"]["total"] <= 2000
        assert f"and now? {n}" in legal.texts(found["messages"])
    assert stub.requests == []
    compact(session, keep_last=5)
    compact(session, keep_last=3)
    assert len(stub.requests) == 2
    assert context(session, budget_tokens=2000)["manifest"]["tokens"]["total"] <= 2000


def test_cm_10_it_is_shown_shortened_with_a_reference(session):
    session.append("log line\n" * 20_000, "what is wrong?")
    found = context(session, budget_tokens=2000)
    [cut] = found["manifest"]["shortened"]
    assert cut["seq"] == 1
    assert cut["shown_tokens"] <= 500 < cut["tokens"]
    assert session.api.get(cut["fetch"]).json["items"][0]["seq"] == 1
    assert "whole in event 1" in found["messages"][0]["content"]


def test_undo_brings_the_events_back(session):
    talk(session, 10)
    before = context(session)["messages"]
    first = compact(session, up_to_seq=4, summary="One.")["seq"]
    second = compact(session, up_to_seq=8, summary="Two.")["seq"]
    url = f"{session.url}/compactions"
    answer = session.api.delete(f"{url}/{first}")
    assert (answer.status_code, answer.json["code"]) == (409, "compaction_not_last")
    assert session.api.delete(f"{url}/{second}").json["active"] == [first]
    assert session.api.delete(f"{url}/{second}").status_code == 404
    assert session.api.delete(f"{url}/{first}").json["active"] == []
    assert context(session)["messages"] == before
    assert [e["type"] for e in session.events(after_seq=20)] == [
        "context.compacted",
        "context.compacted",
        "context.restored",
        "context.restored",
    ]
    assert context(session, at_seq=22)["manifest"]["covered"][1]["up_to_seq"] == 8


def test_undo_of_one_that_took_others_in_brings_them_back(session):
    talk(session, 10)
    seqs = [
        compact(session, up_to_seq=2 * n, summary=f"Part {n}.")["seq"]
        for n in range(1, 7)
    ]
    last = compact(session, up_to_seq=14, summary="Part 7.")
    assert last["replaces"] == seqs
    assert last["from_seq"] == 1
    assert [f"Part {n}." in last["summary"] for n in range(1, 8)] == [True] * 7
    answer = session.api.delete(f"{session.url}/compactions/{last['seq']}")
    assert answer.json["active"] == seqs


def test_what_compactions_keep_costs_no_more_than_is_read(session):
    pairs = [e for n in range(200) for e in (calls(f"c{n}"), answers(f"c{n}", "ok"))]
    session.append("begin", *pairs)
    done = compact(session, keep_last=0, preserve_tools=True)
    assert len(done["keep"]) == 400
    found = context(session, budget_tokens=1_000_000)
    assert len(found["manifest"]["seqs"]) == 300
    [left] = found["manifest"]["left_out"]
    assert (left["from_seq"], left["to_seq"]) == (2, 101)


def test_a_summary_without_room_is_left_out_but_for_what_is_shown(session):
    system = {"type": "message.system", "payload": {"content": "Be kind"}}
    session.append(system, "one", "two", "word " * 100, "three")
    compact(session, up_to_seq=3, summary="They counted. " * 200, keep=[2])
    least = session.api.get(f"{session.url}/context", params={"budget_tokens": 1})
    found = context(session, budget_tokens=least.json["least_tokens"])
    [summary] = found["manifest"]["covered"]
    assert summary["summary"] == "left_out"
    shown = set(found["manifest"]["seqs"])
    assert {1, 5} <= shown
    for left in found["manifest"]["left_out"]:
        assert not shown & set(range(left["from_seq"], left["to_seq"] + 1))


def test_nothing_to_compact_is_said(session):
    talk(session, 2)
    assert refused(session, keep_last=4)[:2] == (409, "nothing_to_compact")
    compact(session, up_to_seq=4, summary="All.")
    assert refused(session, up_to_seq=4, summary="All.")[:2] == (
        409,
        "nothing_to_compact",
    )


def test_a_fork_keeps_the_summaries_of_its_beginning(session):
    talk(session, 10)
    compact(session, up_to_seq=10, summary="The first five.")
    fork = session.fork(21)
    assert context(fork)["messages"] == context(session)["messages"]
    early = session.fork(20)
    assert context(early)["manifest"]["covered"] == []


def test_a_retried_compaction_is_done_once(session, llm):
    stub = llm(lists_seqs)
    talk(session, 10)
    key = {"Idempotency-Key": "once"}
    first = session.api.post(f"{session.url}/compact", {}, headers=key)
    again = session.api.post(f"{session.url}/compact", {}, headers=key)
    assert first.status_code == 201
    assert again.json == first.json
    assert again.headers["Idempotency-Replayed"] == "true"
    assert len(stub.requests) == 1
    other = session.api.post(f"{session.url}/compact", {"keep_last": 1}, headers=key)
    assert (other.status_code, other.json["code"]) == (422, "idempotency_key_reused")
