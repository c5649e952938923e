"""LongTermMemory of both clients, against the real server."""

import pytest

from agentstate_client import (
    AsyncLongTermMemory,
    ConcurrentModificationError,
    LongTermMemory,
    NotFound,
)


@pytest.fixture
def memory(kind, client):
    if kind.name == "sync":
        return LongTermMemory(client)
    return kind._face(AsyncLongTermMemory(client._subject))


def test_remember_recall_correct_forget(client, memory):
    session = client.sessions.create(agent="support", subject="u-1")
    fact = memory.remember("u-1", "Prefers invoices as PDF", session.id)
    assert fact.outcome == "created" and fact.source["session"] == session.id
    assert memory.remember("u-1", "prefers invoices as pdf.").outcome == "seen"
    [hit] = memory.recall("u-1", query="in which form do bills go out?", limit=5)
    assert hit.id == fact.id and hit.why["summary"]
    corrected = memory.correct(hit, "Prefers invoices on paper", "a letter")
    assert corrected.version == 2
    with pytest.raises(ConcurrentModificationError) as refused:
        memory.correct(hit, "Prefers fax")
    assert refused.value.current_version == 2
    assert [r.action for r in memory.history(fact.id)] == ["corrected", "remembered"]
    receipt = memory.forget(fact.id, everywhere=True)
    assert receipt.forgotten == 1 and receipt.receipt
    with pytest.raises(NotFound):
        memory.forget(fact.id)
    assert memory.recall("u-1") == []


def test_review_and_a_whole_user(client, memory):
    memory.remember("u-2", "Likes tea", key="drink")
    guess = client.memory.remember("u-2", "Likes coffee", key="drink", said_by="agent")
    assert guess.outcome == "review"
    [queued] = client.memory.list(status="proposed").items
    assert client.memory.approve(queued.id, queued.version).status == "active"
    assert [f.fact for f in memory.recall("u-2")] == ["Likes coffee"]
    assert memory.forget_user("u-2", dry_run=True).receipt is None
    assert memory.forget_user("u-2").forgotten == 2
    assert memory.recall("u-2") == []
