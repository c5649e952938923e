"""Following a log while it grows, through connections that break: no gap, no repeat."""

import random
import threading

import pytest
from access_app.services import create_key, revoke_key
from agentstate.processes import wait_until
from tests.fixtures import wait_until_settled

from agentstate_client import NotFound, Unauthenticated

HI = {"content": "hi"}


def take(count, stream):
    """Return the first `count` items and stop following."""
    try:
        return [next(stream) for _ in range(count)]
    finally:
        stream.close()


def append_numbered(rival, session, numbers):
    for n in numbers:
        rival.events.append(session.id, "acme.tick", {"n": n, "pad": "x" * 200})


def test_a_stream_gives_the_backlog_then_what_comes(client, rival, session):
    append_numbered(rival, session, range(3))
    stream = client.events.stream(session.id)
    assert [next(stream).payload["n"] for _ in range(3)] == [0, 1, 2]
    append_numbered(rival, session, [3])
    event = next(stream)
    stream.close()
    assert event == client.events.list(session.id, last=1).items[0]


def test_a_stream_begins_behind_after_seq_and_filters(client, rival, session):
    append_numbered(rival, session, range(3))
    rival.events.append(session.id, "message.user", HI)
    found = take(2, client.events.stream(session.id, after_seq=2))
    assert [event.seq for event in found] == [3, 4]
    found = take(1, client.events.stream(session.id, types=["message.*"]))
    assert [event.seq for event in found] == [4]


@pytest.mark.parametrize("seed", range(3))
def test_cuts_at_any_byte_leave_no_gap_and_no_repeat(
    cut_client, proxy, rival, session, seed
):
    count = 60
    chance = random.Random(seed)
    proxy.cut_after = [chance.randrange(1, 6000) for _ in range(12)]
    writer = threading.Thread(
        target=append_numbered, args=(rival, session, range(count))
    )
    writer.start()
    found = take(count, cut_client.events.stream(session.id))
    writer.join()
    assert [event.seq for event in found] == list(range(1, count + 1))
    assert [event.payload["n"] for event in found] == list(range(count))
    assert proxy.connections > 1


def test_a_stream_outlives_its_server(kind, server_factory, key):
    server = server_factory()
    client = kind.client(server.base_url, key, max_retries=1000)
    session = client.sessions.create()
    client.events.append(session.id, "acme.tick", {"n": 0})
    stream = client.events.stream(session.id)
    assert next(stream).seq == 1
    server.kill()
    server.restart()
    client.events.append(session.id, "acme.tick", {"n": 1})
    assert next(stream).seq == 2
    stream.close()


def test_the_feed_is_followed_over_sessions_and_cuts(cut_client, proxy, rival):
    sessions = [rival.sessions.create(agent=name) for name in "ab"]
    for n in range(10):
        append_numbered(rival, sessions[n % 2], [n])
    proxy.cut_after = [900, 2000, 3000]
    found = take(10, cut_client.feed.stream(types=["acme.*"]))
    assert [event.payload["n"] for event in found] == list(range(10))
    assert {event.session for event in found} == {s.id for s in sessions}
    rest = take(4, cut_client.feed.stream(after=found[5].position, types=["acme.*"]))
    assert rest == found[6:]


def test_the_feed_from_now_on(cut_client, proxy, rival, session):
    append_numbered(rival, session, [0])
    wait_until_settled()
    stream = cut_client.feed.stream(after="latest", types=["acme.*"])
    found = []
    reader = threading.Thread(target=lambda: found.append(next(stream)))
    reader.start()
    # It has asked where the feed ends and for the stream from there, and is cut
    # before it has seen anything.
    assert wait_until(lambda: proxy.requests >= 2, 10)
    proxy.cut_all()
    append_numbered(rival, session, [1])
    reader.join()
    stream.close()
    assert [event.payload["n"] for event in found] == [1]


def test_a_stream_ends_when_its_key_is_revoked(kind, server, project, rival, session):
    record, text = create_key(project, scopes=["sessions:read"])
    stream = kind.client(server.base_url, text).events.stream(session.id)
    append_numbered(rival, session, [0])
    assert next(stream).seq == 1
    revoke_key(project.id, record.id)
    with pytest.raises(Unauthenticated):
        next(stream)


def test_a_stream_of_nothing_known_is_refused_at_once(client, session):
    client.sessions.erase(session.id)
    with pytest.raises(NotFound):
        next(client.events.stream(session.id))
