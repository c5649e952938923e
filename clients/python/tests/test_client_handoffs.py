"""Handing work to a specialist and taking it, against the real server."""

import threading

import pytest

from agentstate_client import (
    Assignment,
    Client,
    ConcurrentModificationError,
    Conflict,
    HandoffEnded,
    HandoffFailed,
    HandoffTaken,
    NotFound,
    ToolNotAllowed,
    ValidationError,
)

TASK = "Check invoice A-1"


@pytest.fixture
def run(client):
    """A run with a step of its own under way, as a planner has it."""
    return client.runs.create([{"tool": "think"}], session_key="plan")


@pytest.fixture
def own(server):
    """own(handoff) -> a client with the other agent's key."""
    clients = []

    def make(offered):
        clients.append(Client(server.base_url, offered.token))
        return clients[-1]

    yield make
    for each in clients:
        each.close()


def test_a_handoff_becomes_a_prompt(kind, client, run):
    fact = client.memory.remember("ann", "Prefers invoices as PDF")
    session = client.sessions.create(subject="ann")
    mine = client.runs.create([{"tool": "think"}], session=session.id)
    context = {"facts": [fact.id], "inline": {"page": 2}}
    handoff = kind.handoff(client, TASK, context, {"max_tool_calls": 5}, mine.id)
    assert handoff.to_prompt_context() == {
        "task": TASK,
        "relevant_facts": [{"id": fact.id, "fact": "Prefers invoices as PDF"}],
        "limits": {"max_tool_calls": 5},
    }
    taken = handoff.look()
    assert (taken.status, taken.agent, taken.accepted_by) == (
        "accepted",
        "specialist",
        "specialist",
    )
    assert taken.bundle["inline"] == {"page": 2}


def test_what_is_no_mapping_is_carried_as_it_is(kind, client, run):
    handoff = kind.handoff(client, TASK, ["see page 2"], None, run.id)
    assert handoff.to_prompt_context()["task"] == TASK
    assert handoff.look().bundle["inline"] == ["see page 2"]


def test_it_is_offered_once(kind, client, run):
    handoff = kind.handoff(client, TASK, None, None, run.id)
    first = handoff.offer()
    assert handoff.offer().id == first.id == handoff.look().id
    assert first.token and first.token not in repr(first)
    assert len(client.handoffs.list(run.id)) == 1


def test_the_other_side_in_another_process(kind, client, run):
    """All that travels is the ticket."""
    handoff = kind.handoff(client, TASK, None, None, run.id, agent="billing")
    ticket = handoff.assignment().ticket
    assert set(ticket) == {"handoff", "token"}
    theirs = kind.assignment(ticket, client)
    assert theirs.to_prompt_context(by="billing-2")["task"] == TASK
    with pytest.raises(HandoffTaken):
        kind.assignment(ticket, client).accept("billing-3")
    done = theirs.complete("The invoice is right.", {"ok": True})
    assert done.status == "completed"
    assert theirs.complete("The invoice is right.", {"ok": True}).id == done.id
    assert handoff.wait() == {"summary": "The invoice is right.", "data": {"ok": True}}
    [step] = [s for s in client.runs.steps(run.id) if s.id == done.step]
    assert step.result == handoff.wait()


def test_it_works_with_its_key_and_no_further(client, run, own):
    limits = {"tool_allowlist": ["refund"]}
    offered = client.handoffs.offer(run.id, "billing", TASK, constraints=limits)
    key = own(offered)
    key.handoffs.accept(offered.id, "billing-1")
    key.events.append(offered.child_session, "message.assistant", {"content": "Hm"})
    with pytest.raises(ToolNotAllowed) as refused:
        key.events.append(
            offered.child_session, "tool.call", {"tool_call_id": "c", "name": "wire"}
        )
    assert refused.value.errors[0]["path"] == "events[0].payload.name"
    with pytest.raises(NotFound):
        key.runs.get(run.id)
    with pytest.raises(NotFound):
        key.events.list(offered.session)


def test_delegating_in_this_process(kind, client, run):
    def specialist(assignment):
        told = assignment.to_prompt_context()
        return f"Did: {told['task']}", {"n": 1}

    done = kind.delegate(client, run.id, "billing", TASK, specialist)
    assert done == {"summary": f"Did: {TASK}", "data": {"n": 1}}


@pytest.mark.parametrize("returned", ["Done", {"summary": "Done"}, ("Done", None)])
def test_a_result_may_be_said_in_several_ways(kind, client, run, returned):
    done = kind.delegate(client, run.id, "billing", TASK, lambda _: returned)
    assert done == {"summary": "Done", "data": None}


def test_delegating_to_another_process(kind, client, run):
    """The specialist gets the ticket and answers when it is ready."""
    threads = []

    def pass_on(assignment):
        threads.append(threading.Thread(target=answer, args=(assignment.ticket,)))
        threads[-1].start()

    def answer(ticket):
        with Client(client.connection.base_url, ticket["token"]) as key:
            theirs = Assignment(ticket, key)
            theirs.accept("billing-7")
            theirs.complete("Found it", [1, 2])

    done = kind.delegate(client, run.id, "billing", TASK, pass_on)
    for thread in threads:
        thread.join()
    assert done == {"summary": "Found it", "data": [1, 2]}


def test_after_a_crash_the_same_handoff_goes_on(kind, client, run):
    def crashes(assignment):
        assignment.accept()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kind.delegate(client, run.id, "billing", TASK, crashes, key="invoice")
    calls = []

    def works(assignment):
        calls.append(assignment.to_prompt_context())
        return "Done"

    for _ in range(2):  # the second time there is a result already
        done = kind.delegate(client, run.id, "billing", TASK, works, key="invoice")
        assert done["summary"] == "Done"
    assert len(calls) == 1
    assert len(client.handoffs.list(run.id)) == 1


def test_a_specialist_that_raises_declines(kind, client, run):
    def breaks(assignment):
        raise LookupError("no such invoice")

    with pytest.raises(LookupError):
        kind.delegate(client, run.id, "billing", TASK, breaks, on_failure="skip")
    [handoff] = client.handoffs.list(run.id)
    assert (handoff.status, handoff.reason) == (
        "declined",
        "LookupError: no such invoice",
    )
    again = kind.delegate(client, run.id, "other", TASK, lambda _: "Done")
    assert again["summary"] == "Done", "the run has gone on"


def test_a_handoff_that_comes_to_nothing_is_told(kind, client, run):
    handoff = kind.handoff(client, TASK, None, None, run.id)
    handoff.assignment().decline("not mine")
    with pytest.raises(HandoffFailed) as failed:
        handoff.wait()
    assert (failed.value.outcome, failed.value.detail) == ("declined", "not mine")
    with pytest.raises(HandoffEnded):
        handoff.assignment().accept("late")


def test_waiting_ends_with_its_time(kind, client, run):
    handoff = kind.handoff(client, TASK, None, None, run.id)
    with pytest.raises(TimeoutError):
        handoff.wait(timeout=0.01)
    assert handoff.look().status == "offered"


def test_a_second_answer_is_a_conflict(kind, client, run):
    handoff = kind.handoff(client, TASK, None, None, run.id)
    theirs = handoff.assignment()
    theirs.complete("Yes")
    with pytest.raises(Conflict) as refused:
        theirs.complete("No")
    assert not isinstance(refused.value, ConcurrentModificationError)
    assert handoff.wait()["summary"] == "Yes"


def test_limits_and_refusals_come_back_as_errors(client, run):
    with pytest.raises(ValidationError) as refused:
        client.handoffs.offer(run.id, "b", TASK, constraints={"max_steps": 1})
    assert refused.value.errors[0]["path"] == "constraints.max_steps"
    with pytest.raises(NotFound):
        client.handoffs.offer("0199b2a0-0000-7000-8000-000000000000", "b", TASK)


def test_facts_are_suggested_and_the_tree_is_shown(client):
    session = client.sessions.create(subject="ann")
    run = client.runs.create([{"tool": "think"}], session=session.id)
    client.memory.remember("ann", "Prefers invoices as PDF")
    [fact] = client.handoffs.suggest(run.id, "send invoices", limit=1)
    assert fact.fact == "Prefers invoices as PDF" and fact.why
    offered = client.handoffs.offer(run.id, "billing", TASK)
    tree = client.handoffs.tree(run.id)
    assert [child["run"] for child in tree["children"]] == [offered.child_run]
    assert [h.id for h in client.handoffs.iterate(run.id)] == [offered.id]
