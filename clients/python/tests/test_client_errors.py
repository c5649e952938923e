"""What the real server refuses arrives as the exception that says so."""

import pytest
from tests.fixtures import issue_key

from agentstate_client import (
    IdempotencyKeyReused,
    MissingScope,
    NotFound,
    RateLimited,
    Unauthenticated,
    ValidationError,
)

HI = {"content": "hi"}


def test_a_wrong_key(kind, server):
    client = kind.client(server.base_url, "no-such-key")
    with pytest.raises(Unauthenticated) as caught:
        client.whoami()
    assert (caught.value.status, caught.value.code) == (401, "unauthenticated")


def test_a_key_without_the_scope(kind, server, make_key):
    client = kind.client(server.base_url, make_key(["sessions:read"]))
    with pytest.raises(MissingScope) as caught:
        client.sessions.create()
    assert caught.value.extra["scope"] == "sessions:write"


def test_another_project_s_session_does_not_exist(kind, server, other_project, session):
    stranger = kind.client(server.base_url, issue_key(other_project))
    for call in (
        lambda: stranger.sessions.get(session.id),
        lambda: stranger.events.append(session.id, "message.user", HI),
        lambda: next(stranger.events.stream(session.id)),
    ):
        with pytest.raises(NotFound):
            call()


def test_an_error_tells_the_path_of_the_field(client, session):
    with pytest.raises(ValidationError) as caught:
        client.events.append(session.id, "message.user", {})
    [error] = caught.value.errors
    assert error["path"] == "events[0].payload.content"
    assert "events[0].payload.content" in str(caught.value)
    assert str(caught.value).startswith("invalid: ")


def test_a_key_used_for_another_body(client, session):
    client.events.append(session.id, "message.user", HI, idempotency_key="k-1")
    with pytest.raises(IdempotencyKeyReused):
        client.events.append(
            session.id, "message.user", {"content": "x"}, idempotency_key="k-1"
        )


def test_the_same_key_and_body_is_the_first_answer(client, session):
    first = client.events.append(session.id, "message.user", HI, idempotency_key="k")
    again = client.events.append(session.id, "message.user", HI, idempotency_key="k")
    assert again == first
    assert client.sessions.get(session.id).last_seq == 1


def test_a_used_up_rate_limit(kind, server, make_key):
    key = make_key(rate_limit_per_minute=2)
    client = kind.client(server.base_url, key, deadline=10)
    client.whoami()
    client.whoami()
    with pytest.raises(RateLimited) as caught:
        client.whoami()
    assert caught.value.extra["limit"] == 2
