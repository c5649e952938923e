"""The plain words: append_event and load_session, by id or by the client's own key."""

import uuid

import pytest

from agentstate_client import NotFound, SeqConflict

HI = {"content": "hi"}


@pytest.fixture
def store(kind, client):
    return kind.store(client)


def test_a_session_is_opened_by_key_and_loaded_whole(store, client):
    made = store.open_session("chat-1", agent="support", subject="u-100")
    assert store.open_session("chat-1").id == made.id
    assert store.append_event("chat-1", "message.user", HI).seq == 1
    client.state.put(made.id, {"n": 1}, 0)
    appended = store.append_event(made.id, "message.assistant", {"content": "yes"})
    for name in ("chat-1", made.id):
        loaded = store.load_session(name)
        assert (loaded.id, loaded.state, loaded.version) == (made.id, {"n": 1}, 1)
        types = [event.type for event in loaded.events]
        assert types == ["message.user", "state.changed", "message.assistant"]
        assert loaded.events[-1].id == appended.id


def test_a_long_log_is_loaded_whole(store, client):
    made = store.open_session("long")
    for _ in range(3):
        events = [{"type": "message.user", "payload": HI}] * 700
        client.events.append_many(made.id, events)
    loaded = store.load_session("long")
    assert [event.seq for event in loaded.events] == list(range(1, 2101))


def test_no_session_springs_into_being(store, client):
    for name in ("nobody", str(uuid.uuid4())):
        with pytest.raises(NotFound):
            store.append_event(name, "message.user", HI)
        with pytest.raises(NotFound):
            store.load_session(name)
    assert client.sessions.list().items == []


def test_a_key_may_look_like_an_id(store):
    key = str(uuid.uuid4())
    made = store.open_session(key)
    store.append_event(key, "message.user", HI)
    assert store.load_session(key).id == made.id


def test_a_key_whose_session_was_erased_finds_the_new_one(store, client):
    old = store.open_session("chat-1")
    store.append_event("chat-1", "message.user", HI)
    client.sessions.erase(old.id)
    with pytest.raises(NotFound):
        store.append_event("chat-1", "message.user", HI)
    new = store.open_session("chat-1")
    store.append_event("chat-1", "message.user", HI)
    assert store.load_session("chat-1").id == new.id != old.id


def test_an_event_id_and_an_expected_seq_reach_the_server(store):
    store.open_session("chat-1")
    id = str(uuid.uuid4())
    first = store.append_event("chat-1", "message.user", HI, event_id=id)
    assert store.append_event("chat-1", "message.user", HI, event_id=id) == first
    assert first.id == id
    with pytest.raises(SeqConflict):
        store.append_event("chat-1", "message.user", HI, expected_seq=0)


def test_a_store_finds_its_server_in_the_environment(kind, server, key, monkeypatch):
    monkeypatch.setenv("AGENTSTATE_URL", server.base_url)
    monkeypatch.setenv("AGENTSTATE_API_KEY", key)
    store = kind.store(kind.client(None, None))
    assert store.open_session("chat-1").key == "chat-1"


def test_a_client_without_a_key_says_what_to_set(kind, monkeypatch):
    monkeypatch.delenv("AGENTSTATE_API_KEY", raising=False)
    with pytest.raises(ValueError, match="AGENTSTATE_API_KEY"):
        kind.client("http://127.0.0.1:9", None)
