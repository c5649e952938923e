"""From the text of a key to its Caller, and how long that is remembered."""

import time
from uuid import UUID

import httpx
import pytest
from django.core.signals import request_finished
from django.db import connection
from django.test.utils import CaptureQueriesContext

from access_app.callers import CACHE_SECONDS, Caller, forget_known_keys, identify
from access_app.errors import MissingScope, Unauthenticated
from access_app.keys import hash_secret, is_secret, new_key_text, parse_key_text
from access_app.models import ApiKey
from access_app.services import revoke_key, touch_keys
from agentstate.errors import NotFound
from agentstate.ids import new_id


class Conversation:
    """Shaped like a session, which lives in the app above."""

    def __init__(self, subject=None):
        self.id = new_id()
        self.subject = subject


def caller(**fields):
    wanted = {
        "key_id": new_id(),
        "project_id": new_id(),
        "scopes": frozenset({"sessions:read"}),
        "subject": None,
        "session_id": None,
        "actor": "key:0",
        "rate_limit_per_minute": 0,
    }
    return Caller(**(wanted | fields))


def stored(text):
    return ApiKey.objects.get(prefix=parse_key_text(text).prefix)


def test_a_known_key_is_not_read_again(make_key):
    text = make_key()
    identify(text)
    with CaptureQueriesContext(connection) as queries:
        assert identify(text) is identify(text)
    assert len(queries) == 0


def test_a_new_key_costs_one_query(make_key):
    text = make_key()
    with CaptureQueriesContext(connection) as queries:
        identify(text)
    assert len(queries) == 1


def test_a_revoked_key_is_refused_within_a_second(project, make_key):
    """No call that begins a second after the revocation gets through."""
    text = make_key()
    identify(text)
    revoke_key(project.id, stored(text).id)
    assert seconds_until_refused(lambda: identify(text)) < 1.0


def seconds_until_refused(call):
    revoked = time.monotonic()
    last_success = revoked
    while time.monotonic() - revoked < 60:
        began = time.monotonic()
        try:
            call()
        except Unauthenticated:
            return last_success - revoked
        last_success = began
    raise AssertionError("the key still works")


def test_a_revoked_key_is_refused_by_every_process(project, make_key, server_factory):
    text = make_key(rate_limit_per_minute=0)
    servers = [server_factory(), server_factory()]
    headers = {"Authorization": f"Bearer {text}"}
    with httpx.Client(headers=headers, timeout=60) as client:

        def call(server):
            answer = client.get(f"{server.base_url}/api/v1/whoami")
            if answer.status_code == 401:
                raise Unauthenticated
            assert answer.status_code == 200

        for server in servers:
            call(server)
        revoke_key(project.id, stored(text).id)
        for server in servers:
            assert seconds_until_refused(lambda server=server: call(server)) < 1.0


def test_what_is_remembered_lasts_less_than_the_promised_second():
    assert CACHE_SECONDS < 1.0


def test_wrong_keys_are_not_remembered_as_right(make_key):
    text = make_key()
    wrong = text[:-1] + ("0" if text[-1] != "0" else "1")
    identify(text)
    with pytest.raises(Unauthenticated):
        identify(wrong)


def test_use_is_written_after_the_answer(make_key):
    text = make_key()
    forget_known_keys()
    identify(text)
    assert stored(text).last_used_at is None
    request_finished.send(sender=None)
    assert stored(text).last_used_at is not None


def test_use_is_written_once_a_minute_by_the_database_clock(make_key, clock):
    key = stored(make_key())
    touch_keys([key.id])
    first = stored_use(key)
    touch_keys([key.id])
    assert stored_use(key) == first
    clock.advance(seconds=61)
    touch_keys([key.id])
    assert stored_use(key) > first


def stored_use(key):
    return ApiKey.objects.get(pk=key.pk).last_used_at


def test_all_is_every_scope_to_come():
    assert caller(scopes=frozenset({"all"})).has_scope("runs:dream")


def test_a_missing_scope_is_named():
    with pytest.raises(MissingScope) as refused:
        caller().require_scope("sessions:write")
    assert refused.value.extra == {"scope": "sessions:write"}


@pytest.mark.parametrize("subject", [None, "user-1", "user-2"])
def test_an_unbound_key_sees_every_session(subject):
    caller().check_session(Conversation(subject))


def test_a_key_bound_to_a_subject_sees_its_sessions_only():
    bound = caller(subject="user-1")
    bound.check_session(Conversation("user-1"))
    for other in ("user-2", None):
        with pytest.raises(NotFound):
            bound.check_session(Conversation(other))


def test_a_key_bound_to_a_session_sees_that_one_only():
    mine, other = Conversation(), Conversation()
    bound = caller(session_id=mine.id)
    bound.check_session(mine)
    with pytest.raises(NotFound):
        bound.check_session(other)


def test_the_filter_says_the_same():
    bound = caller(subject="user-1", session_id=UUID(int=1))
    assert bound.session_filter() == {
        "project_id": bound.project_id,
        "subject": "user-1",
        "id": UUID(int=1),
    }


def test_a_bound_key_administers_nothing():
    everything = frozenset({"all", "admin"})
    assert caller(scopes=everything).has_scope("admin")
    assert not caller(scopes=everything, subject="user-1").has_scope("admin")
    assert not caller(scopes=everything, session_id=new_id()).has_scope("admin")


def test_a_key_text_reads_back_and_hides_its_secret():
    text = new_key_text()
    assert parse_key_text(str(text)) == text
    assert text.secret not in repr(text)


@pytest.mark.parametrize("text", ["", "as__", "as_x_y", "sk_0123456789ab_" + "0" * 64])
def test_other_texts_are_no_keys(text):
    assert parse_key_text(text) is None
    with pytest.raises(Unauthenticated):
        identify(text)


def test_a_secret_is_compared_with_its_hash():
    text = new_key_text()
    assert is_secret(text.secret, hash_secret(text.secret))
    assert not is_secret(text.secret, hash_secret("x"))
    assert not is_secret(text.secret, None)
