"""POST and DELETE /sessions/{id}/lock: a lease on a session's writes, with a fence."""

import threading

import pytest
from django.db import connection

from tests.factories import MISSING, error_of, key_header

URL = "/lock"


def lock(session, body=None, token=None, **options):
    headers = options.pop("headers", {})
    if token:
        headers["X-Lock-Token"] = token
    return session.api.post(f"{session.url}{URL}", body, headers=headers)


def unlock(session, token):
    return session.api.delete(f"{session.url}{URL}", headers={"X-Lock-Token": token})


def writes(session, headers):
    """Every write there is to a session, with the headers given."""
    api, url = session.api, session.url
    yield session.append("x", headers=headers)
    yield session.put_state({}, session.get()["version"], headers=headers)
    yield api.patch(
        f"{url}/state",
        {"merge": {}, "expected_version": session.get()["version"]},
        headers=headers,
    )
    yield api.patch(url, {"title": f"{session.get()['last_seq']}"}, headers=headers)
    yield api.post(f"{url}/close", headers=headers)
    yield api.post(f"{url}/reopen", headers=headers)


def test_a_lock_says_who_until_when_and_its_fence(session):
    answer = lock(session, {"holder": "w-1", "ttl_s": 60})
    assert answer.status_code == 200
    assert answer.json.keys() == {"token", "fence", "holder", "until"}
    assert (answer.json["holder"], answer.json["fence"]) == ("w-1", 1)
    assert lock(session, token=answer.json["token"]).json["holder"].startswith("key:")


def test_while_it_is_held_writes_of_others_are_423(session):
    held = lock(session).json
    before = session.get()
    for answer in writes(session, {}):
        assert (answer.status_code, answer.json["code"]) == (423, "session_locked")
        assert answer.json["lock_until"]
    assert session.api.delete(session.url).status_code == 423
    assert lock(session).status_code == 423
    assert session.get() == before
    for answer in writes(session, {"X-Lock-Token": held["token"]}):
        assert answer.status_code in (200, 201), answer


def test_lock_until_is_written_as_every_time_is(session):
    until = lock(session).json["until"]
    assert session.append("x").json["lock_until"] == until
    assert session.put_state({}, 0).json["lock_until"] == until
    assert lock(session).json["lock_until"] == until


def test_reads_and_forks_need_no_lock(session):
    session.append("x")
    lock(session)
    assert session.events()
    assert session.get("/replay", at_seq=1)
    assert session.fork(1).append("free").status_code == 201


def test_with_its_token_the_lease_is_extended_and_keeps_its_fence(session, clock):
    held = lock(session, {"ttl_s": 30}).json
    clock.advance(seconds=20)
    again = lock(session, {"ttl_s": 30}, held["token"]).json
    assert (again["token"], again["fence"]) == (held["token"], held["fence"])
    assert again["until"] > held["until"]
    clock.advance(seconds=20)
    assert session.append("x").status_code == 423


def test_a_lease_that_ended_is_lost_for_good(session, clock):
    """The fence grows with each lease: a downstream can tell the stale holder."""
    first = lock(session, {"ttl_s": 30}).json
    clock.advance(seconds=31)
    for answer in writes(session, {"X-Lock-Token": first["token"]}):
        assert (answer.status_code, answer.json["code"]) == (409, "lock_lost")
    assert unlock(session, first["token"]).json["code"] == "lock_lost"
    assert lock(session, token=first["token"]).json["code"] == "lock_lost"
    assert session.append("free again").status_code == 201
    second = lock(session).json
    assert second["fence"] == first["fence"] + 1
    assert second["token"] != first["token"]
    late = session.append("late", headers={"X-Lock-Token": first["token"]})
    assert (late.status_code, late.json["code"]) == (409, "lock_lost")
    assert session.texts() == ["free again"]


def test_given_back_it_is_free_at_once_and_the_fence_goes_on(session):
    first = lock(session).json
    assert unlock(session, first["token"]).status_code == 204
    assert session.append("x").status_code == 201
    assert lock(session).json["fence"] == first["fence"] + 1
    assert unlock(session, first["token"]).json["code"] == "lock_lost"


def test_giving_back_without_the_token_is_428(session):
    answer = session.api.delete(f"{session.url}{URL}")
    assert (answer.status_code, answer.json["code"]) == (428, "precondition_required")


def test_a_token_without_a_lock_writes_nothing(session):
    """Who believes to hold a lock must hear that there is none."""
    for answer in writes(session, {"X-Lock-Token": MISSING}):
        assert answer.json["code"] == "lock_lost"
    assert session.get()["last_seq"] == 0


def test_what_is_no_token_is_422(session):
    answer = session.append("x", headers={"X-Lock-Token": "mine"})
    assert error_of(answer) == (422, "invalid", "X-Lock-Token")


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"ttl_s": 0}, "ttl_s"),
        ({"ttl_s": 3601}, "ttl_s"),
        ({"ttl_s": "30"}, "ttl_s"),
        ({"holder": "x" * 256}, "holder"),
        ({"holder": "a\0"}, "holder"),
        ({"seconds": 3}, "seconds"),
    ],
)
def test_a_wrong_body_is_422(session, body, path):
    assert error_of(lock(session, body)) == (422, "invalid", path)


def test_a_closed_session_cannot_be_locked(session):
    session.api.post(f"{session.url}/close")
    assert lock(session).json["code"] == "session_closed"


def test_a_retried_lock_is_one_lease(session):
    headers = key_header()
    first = lock(session, headers=dict(headers))
    again = lock(session, headers=dict(headers))
    assert again.json == first.json
    assert lock(session, token=first.json["token"]).json["fence"] == 1


def test_of_20_that_ask_at_once_one_gets_it(session):
    barrier, answers = threading.Barrier(20), []

    def ask():
        barrier.wait(30)
        answers.append(lock(session))
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(a.status_code for a in answers) == [200] + [423] * 19


def test_taking_turns_the_fence_only_grows(session, clock):
    fences = []
    for turn in range(6):
        held = lock(session, {"ttl_s": 10}).json
        fences.append(held["fence"])
        if turn % 2:
            clock.advance(seconds=11)
        else:
            unlock(session, held["token"])
    assert fences == [1, 2, 3, 4, 5, 6]
