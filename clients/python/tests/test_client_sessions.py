"""Sessions from creating to erasing."""

from datetime import datetime, timedelta, timezone

import pytest

from agentstate_client import (
    LockLost,
    NotFound,
    SessionClosed,
    SessionKeyTaken,
    SessionLocked,
)

HI = {"content": "hi"}


def test_create_returns_the_whole_session(client):
    later = datetime.now(timezone.utc) + timedelta(days=1)
    made = client.sessions.create(
        key="chat-1",
        agent="support",
        subject="u-100",
        title="Refund",
        labels={"team": "eu"},
        metadata={"n": 9007199254740993},
        state={"step": 1},
        expires_at=later,
    )
    assert made == client.sessions.get(made.id)
    assert (made.key, made.agent, made.subject) == ("chat-1", "support", "u-100")
    assert (made.status, made.version, made.state) == ("open", 1, {"step": 1})
    assert made.metadata == {"n": 9007199254740993}
    assert made.expires_at == later
    assert made.created_at.tzinfo is not None
    assert made.closed_at is None
    assert made.extra == {}


def test_the_same_key_is_the_same_session(client):
    made = client.sessions.create(key="chat-1", subject="u-100")
    assert client.sessions.create(key="chat-1").id == made.id
    with pytest.raises(SessionKeyTaken):
        client.sessions.create(key="chat-1", subject="u-200")


def test_list_filters(client):
    made = client.sessions.create(
        key="chat-1",
        agent="a",
        subject="s",
        title="Refund",
        labels={"t": "eu", "n": "1"},
    )
    client.sessions.create(agent="b", labels={"t": "us"})
    since = made.created_at - timedelta(seconds=1)
    for wanted in (
        {"key": "chat-1"},
        {"agent": "a"},
        {"subject": "s"},
        {"labels": {"t": "eu", "n": "1"}},
        {"q": "refu"},
        {"agent": "a", "status": "open", "updated_since": since},
    ):
        assert [s.id for s in client.sessions.list(**wanted).items] == [made.id]
    assert client.sessions.list(labels={"t": "eu", "n": "2"}).items == []
    assert client.sessions.list(status="closed").items == []


def test_iterate_goes_over_all_pages(client):
    made = [client.sessions.create().id for _ in range(7)]
    page = client.sessions.list(limit=3)
    assert len(page) == 3 and page.next
    found = [session.id for session in client.sessions.iterate(limit=3)]
    assert sorted(found) == sorted(made)


def test_update_changes_what_is_given(client):
    later = datetime.now(timezone.utc) + timedelta(days=1)
    made = client.sessions.create(title="a", labels={"x": "1"}, expires_at=later)
    changed = client.sessions.update(made.id, title="b")
    assert (changed.title, changed.labels) == ("b", {"x": "1"})
    assert changed.expires_at == later
    assert client.sessions.update(made.id, expires_at=None).expires_at is None


def test_a_closed_session_takes_events_again_when_reopened(client, session):
    closed = client.sessions.close(session.id, reason="done")
    assert closed.status == "closed" and closed.closed_at
    with pytest.raises(SessionClosed):
        client.events.append(session.id, "message.user", HI)
    assert client.sessions.reopen(session.id).status == "open"
    client.events.append(session.id, "message.user", HI)


def test_an_erased_session_is_gone(client, session):
    assert client.sessions.erase(session.id) is None
    with pytest.raises(NotFound) as caught:
        client.sessions.get(session.id)
    assert caught.value.code == "session_not_found"


def test_a_fork_begins_with_the_same_log(client, session):
    for text in "abc":
        client.events.append(session.id, "message.user", {"content": text})
    fork = client.sessions.fork(session.id, 2, title="what if")
    assert (fork.parent, fork.forked_from_seq) == (session.id, 2)
    client.events.append(fork.id, "message.user", {"content": "d"})

    def texts(id):
        return [event.payload["content"] for event in client.events.iterate(id)]

    assert texts(fork.id) == ["a", "b", "d"]
    assert texts(session.id) == ["a", "b", "c"]
    assert [s.id for s in client.sessions.list(parent=session.id).items] == [fork.id]


def test_replay_shows_what_was(client, session):
    client.events.append(session.id, "message.user", HI)
    client.state.put(session.id, {"n": 1}, 0)
    call = {"tool_call_id": "c-1", "name": "search", "arguments": {}}
    client.events.append(session.id, "tool.call", call)
    client.state.put(session.id, {"n": 2}, 1)
    then = client.sessions.replay(session.id, 3)
    assert (then.at_seq, then.state, then.version) == (3, {"n": 1}, 1)
    assert [e.type for e in then.conversation] == ["message.user", "tool.call"]
    assert [c.tool_call_id for c in then.open_tool_calls] == ["c-1"]
    assert client.sessions.replay(session.id, 2).open_tool_calls == []


def test_a_lock_keeps_others_out(client, session):
    lock = client.sessions.lock(session.id, ttl_s=60, holder="w-1")
    assert lock.until > session.created_at
    with pytest.raises(SessionLocked):
        client.events.append(session.id, "message.user", HI)
    with pytest.raises(SessionLocked):
        client.sessions.lock(session.id)
    client.events.append(session.id, "message.user", HI, lock_token=lock.token)
    client.state.put(session.id, {"n": 1}, 0, lock_token=lock.token)
    longer = client.sessions.lock(session.id, ttl_s=600, lock_token=lock.token)
    assert (longer.token, longer.fence) == (lock.token, lock.fence)
    assert longer.until > lock.until
    client.sessions.unlock(session.id, lock.token)
    client.events.append(session.id, "message.user", HI)
    with pytest.raises(LockLost):
        client.events.append(session.id, "message.user", HI, lock_token=lock.token)
    assert client.sessions.lock(session.id).fence > lock.fence


def test_whoami_tells_the_key(client, project):
    me = client.whoami()
    assert me.project_id == str(project.id)
    assert me.scopes == ["all"]
    assert me.session_id is None
