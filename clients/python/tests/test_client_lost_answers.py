"""A real server behind a proxy that loses its answers: one effect, one answer."""

from threading import Thread

import pytest

from agentstate_client import ConcurrentModificationError, Unavailable

HI = {"content": "hi"}


def test_an_append_whose_answer_is_lost_happens_once(cut_client, proxy, session):
    proxy.lose_answers = 2
    result = cut_client.events.append(session.id, "message.user", HI)
    assert proxy.lose_answers == 0
    assert result.last_seq == 1
    assert [e.seq for e in cut_client.events.iterate(session.id)] == [1]


def test_a_state_write_whose_answer_is_lost_is_no_conflict(cut_client, proxy, session):
    proxy.lose_answers = 1
    assert cut_client.state.put(session.id, {"n": 1}, 0).version == 1
    with pytest.raises(ConcurrentModificationError):
        cut_client.state.put(session.id, {"n": 2}, 0)


def test_every_kind_of_write_survives_a_lost_answer(cut_client, proxy, client):
    def lossy(write, *args, **kwargs):
        proxy.lose_answers = 1
        outcome = write(*args, **kwargs)
        assert proxy.lose_answers == 0
        return outcome

    sessions = cut_client.sessions
    made = lossy(sessions.create, agent="a")
    assert [s.id for s in client.sessions.iterate()] == [made.id]
    lossy(cut_client.state.merge, made.id, {"n": 1}, 0)
    lossy(cut_client.state.patch, made.id, [{"op": "remove", "path": "/n"}], 1)
    assert client.state.get(made.id).version == 2
    lossy(sessions.update, made.id, title="b")
    lossy(sessions.close, made.id)
    lossy(sessions.reopen, made.id)
    told = [e.type for e in client.events.iterate(made.id, types=["session.*"])]
    assert told == ["session.updated", "session.closed", "session.reopened"]
    lossy(sessions.fork, made.id, 1)
    assert len(client.sessions.list(parent=made.id).items) == 1
    lock = lossy(sessions.lock, made.id)
    assert lock.fence == 1
    lossy(sessions.unlock, made.id, lock.token)
    lossy(sessions.erase, made.id)


def test_a_write_given_up_can_be_settled_later_with_its_key(kind, proxy, key, session):
    hasty = kind.client(proxy.base_url, key, max_retries=0)
    proxy.lose_answers = 1
    with pytest.raises(Unavailable) as caught:
        hasty.events.append(session.id, "message.user", HI)
    again = hasty.events.append(
        session.id, "message.user", HI, idempotency_key=caught.value.idempotency_key
    )
    assert again.last_seq == 1


def test_a_server_that_is_away_is_waited_for(kind, server_factory, key):
    server = server_factory()
    client = kind.client(server.base_url, key, max_retries=1000)
    session = client.sessions.create()
    server.kill()
    back = Thread(target=server.restart)
    back.start()
    assert client.events.append(session.id, "message.user", HI).last_seq == 1
    back.join()


def test_nobody_there_is_unavailable(kind, key):
    client = kind.client("http://127.0.0.1:9", key, max_retries=1)
    with pytest.raises(Unavailable) as caught:
        client.whoami()
    assert caught.value.code == "unreachable"
