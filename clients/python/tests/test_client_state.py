"""State by version: the second writer is told, and nothing is lost."""

import threading

import pytest

from agentstate_client import (
    AsyncClient,
    AsyncVersionedSessionState,
    Client,
    ConcurrentModificationError,
    PatchFailed,
    VersionedSessionState,
)


def test_every_write_makes_a_version(client, session):
    assert client.state.get(session.id).version == 0
    assert client.state.put(session.id, {"a": 1, "b": {"c": 2}}, 0).version == 1
    merged = client.state.merge(session.id, {"a": None, "b": {"d": 3}}, 1)
    assert (merged.state, merged.version) == ({"b": {"c": 2, "d": 3}}, 2)
    operations = [{"op": "replace", "path": "/b/c", "value": [1, 2]}]
    patched = client.state.patch(session.id, operations, 2)
    assert patched.state == {"b": {"c": [1, 2], "d": 3}}
    assert client.state.get(session.id) == patched
    assert client.state.get(session.id, at_seq=1).state == {"a": 1, "b": {"c": 2}}


def test_the_loser_is_told_what_changed(client, session):
    client.state.put(session.id, {"cart": "open", "n": 1}, 0)
    client.state.put(session.id, {"cart": "paid", "n": 1}, 1)
    for write in (
        lambda: client.state.put(session.id, {}, 1),
        lambda: client.state.merge(session.id, {"x": 1}, 1),
        lambda: client.state.patch(session.id, [{"op": "remove", "path": "/n"}], 1),
    ):
        with pytest.raises(ConcurrentModificationError) as caught:
            write()
        assert caught.value.current_version == 2
        assert caught.value.changed_paths == ["/cart"]
    assert client.state.get(session.id).state == {"cart": "paid", "n": 1}


def test_a_patch_that_does_not_apply_is_refused(client, session):
    with pytest.raises(PatchFailed):
        client.state.patch(session.id, [{"op": "remove", "path": "/none"}], 0)


def test_update_state_raises_with_the_current_version(kind, client, session):
    versions = kind.versioned_state(client)
    first = versions.update_state(session.id, {"n": 1}, 0)
    assert versions.get(session.id) == first
    with pytest.raises(ConcurrentModificationError) as caught:
        versions.update_state(session.id, {"n": 2}, 0)
    assert caught.value.current_version == 1


def test_update_with_reads_anew_when_another_was_faster(kind, client, session, rival):
    seen = []

    def change(state):
        seen.append(state)
        if len(seen) == 1:
            rival.state.put(session.id, {"theirs": 1}, 0)
        return state | {"mine": 1}

    written = kind.versioned_state(client).update_with(session.id, change)
    assert seen == [{}, {"theirs": 1}]
    assert (written.state, written.version) == ({"theirs": 1, "mine": 1}, 2)


def test_update_with_gives_up_after_max_tries(kind, client, session, rival):
    def change(state):
        current = rival.state.get(session.id)
        rival.state.put(session.id, {"n": current.version}, current.version)
        return {"mine": 1}

    with pytest.raises(ConcurrentModificationError):
        kind.versioned_state(client).update_with(session.id, change, max_tries=3)
    assert rival.state.get(session.id).state == {"n": 2}


@pytest.mark.asyncio
async def test_update_with_takes_a_coroutine_function(server, key, rival):
    session = rival.sessions.create()

    async def change(state):
        return state | {"mine": 1}

    async with AsyncClient(server.base_url, key) as client:
        versions = AsyncVersionedSessionState(client)
        assert (await versions.update_with(session.id, change)).state == {"mine": 1}


def test_writers_at_the_same_time_lose_nothing(server, key, rival):
    session = rival.sessions.create(state={"seen": []})
    writers, each = 8, 4
    start = threading.Barrier(writers)
    failures = []

    def write(writer):
        try:
            with Client(server.base_url, key) as client:
                versions = VersionedSessionState(client)
                start.wait()
                for n in range(each):
                    mine = f"{writer}-{n}"
                    versions.update_with(
                        session.id,
                        lambda state, mine=mine: {"seen": [*state["seen"], mine]},
                        max_tries=200,
                    )
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    final = rival.state.get(session.id)
    assert final.version == 1 + writers * each
    wanted = {f"{writer}-{n}" for writer in range(writers) for n in range(each)}
    assert set(final.state["seen"]) == wanted
    assert len(final.state["seen"]) == writers * each
