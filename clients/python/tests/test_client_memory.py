"""Working memory in plain words, of a session, a run, or a key of one's own."""

import pytest

from agentstate_client import (
    ConcurrentModificationError,
    EntryExists,
    EntryExpired,
    NotFound,
)


@pytest.fixture
def memory(kind, client):
    return kind.working_memory("task-1", client)


def test_set_and_get(memory):
    assert memory.get("draft") is None
    entry = memory.set("draft", {"amount": 30}, ttl=600)
    assert (entry.ttl_s, entry.policy) == (600, "fixed")
    assert memory.get("draft") == {"amount": 30}
    assert memory.get("other", "nothing") == "nothing"
    assert memory.entry("draft").version == entry.version
    assert memory.set("other", 1).ttl_s == 3600


def test_the_key_names_one_task(kind, client, memory):
    memory.set("k", 1)
    assert kind.working_memory("task-1", client).get("k") == 1
    assert kind.working_memory("task-2", client).get("k") is None
    session = client.sessions.create(key="task-1")
    assert kind.working_memory(session.id, client).get("k") == 1


def test_a_run_has_its_own(kind, client):
    run = client.runs.create([{"tool": "t"}], session_key="task-1")
    of_run = kind.working_memory(run.id, client)
    assert of_run.get("k") is None
    of_run.set("k", "run")
    kind.working_memory("task-1", client).set("k", "session")
    assert of_run.get("k") == "run"


def test_counting_and_collecting(memory):
    assert [memory.increment("n"), memory.increment("n", 5)] == [1, 6]
    assert [memory.append("l", "a"), memory.append("l", "b")] == [1, 2]
    assert memory.all() == {"n": 6, "l": ["a", "b"]}


def test_compare_and_set(memory):
    entry = memory.set("k", 1)
    memory.set("k", 2, expected_version=entry.version)
    with pytest.raises(ConcurrentModificationError) as lost:
        memory.set("k", 3, expected_version=entry.version)
    assert lost.value.current_version == entry.version + 1
    with pytest.raises(EntryExists):
        memory.set("k", 4, only_new=True)


def test_what_is_gone(memory, redis, client):
    memory.set("k", 1)
    assert memory.delete("k") is True
    assert memory.delete("k") is False
    with pytest.raises(NotFound):
        memory.touch("k")
    memory.set("k", 1)
    session = client.sessions.create(key="task-1").id
    [key] = redis.scan_iter(match=f"*{session}*:entry:k", count=1000)
    redis.delete(key)  # as if its time had come
    assert memory.get("k") is None
    with pytest.raises(EntryExpired):
        memory.entry("k")


@pytest.mark.parametrize("name", ["..", ".", "a/b", "a/increment", "*", "é ü", "\0"])
def test_any_text_is_a_key(memory, name):
    memory.set(name, 1)
    assert memory.get(name) == 1
    assert memory.all() == {name: 1}
    assert memory.delete(name)
