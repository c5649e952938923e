"""Idempotency-Key on the append, whose service sees to it in its own statement."""

import threading

import psycopg
import pytest
from django.conf import settings
from django.db import connection

from access_app.callers import forget_known_keys
from access_app.models import ApiKey
from access_app.services import revoke_key
from agentstate.processes import wait_until
from sessions_app.models import Event
from tests.factories import MISSING, SESSIONS, fetch, key_header, make_session, says
from tests.fixtures import Api


def in_parallel(*jobs):
    """Run the jobs at one moment, each in a thread, and return what they return."""
    barrier = threading.Barrier(len(jobs))
    results = [None] * len(jobs)

    def run(at, job):
        try:
            barrier.wait(30)
            results[at] = job()
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_a_retry_gets_the_first_answer_and_stores_nothing(session):
    headers = key_header()
    first = session.append("a", "b", headers=headers)
    session.append("between")
    again = session.append("a", "b", headers=headers)
    assert (again.status_code, again.json) == (201, first.json)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert "Idempotency-Replayed" not in first.headers
    assert session.texts() == ["a", "b", "between"]


def test_id_02_another_body_with_a_used_key_is_refused(session):
    headers = key_header("k-78")
    first = session.append("A", headers=headers)
    other = session.append("B", headers=headers)
    assert (other.status_code, other.json["code"]) == (422, "idempotency_key_reused")
    assert session.texts() == ["A"]
    assert session.append("A", headers=headers).json == first.json


def test_id_03_a_key_belongs_to_its_path(session, api):
    other = make_session(api)
    headers = key_header("k-79")
    one, two = in_parallel(
        lambda: session.append("x", headers=headers),
        lambda: other.append("x", headers=headers),
    )
    assert (one.status_code, two.status_code) == (201, 201)
    assert one.json["events"] != two.json["events"]
    assert session.texts() == other.texts() == ["x"]


def test_id_03_of_50_parallel_calls_one_has_an_effect(session):
    """Acceptance 11: the rest are replays, or 409 with Retry-After."""
    headers = key_header("k-79")
    made = in_parallel(*[lambda: session.append("x", headers=headers)] * 50)
    for answer in made:
        if answer.status_code == 409:
            assert answer.json["code"] == "idempotency_in_progress"
            assert answer.headers["Retry-After"]
        else:
            assert answer.status_code == 201
    bodies = {answer.content for answer in made if answer.status_code == 201}
    assert len(bodies) == 1
    first = [
        a
        for a in made
        if a.status_code == 201 and "Idempotency-Replayed" not in a.headers
    ]
    assert len(first) == 1
    assert session.texts() == ["x"]


@pytest.fixture
def held(session):
    """A transaction of somebody else that holds the session's row."""
    with psycopg.connect(settings.DATABASE_URL) as other:
        other.execute(
            "SELECT FROM agent_sessions WHERE id = %s FOR UPDATE", [session.id]
        )
        yield other


def someone_waits_for_a_lock():
    return bool(
        fetch(
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            " AND datname = current_database()"
        )
    )


def test_id_04_while_the_first_runs_the_second_is_told_so(session, held):
    headers = key_header("k-80")
    first = []

    def append():
        first.append(session.append("x", headers=headers))
        connection.close()

    thread = threading.Thread(target=append)
    thread.start()
    assert wait_until(someone_waits_for_a_lock, 60)
    second = session.append("x", headers=headers)
    assert (second.status_code, second.json["code"]) == (409, "idempotency_in_progress")
    assert second.headers["Retry-After"] == "1"
    held.rollback()
    thread.join()
    assert first[0].status_code == 201
    third = session.append("x", headers=headers)
    assert third.json == first[0].json
    assert session.texts() == ["x"]


def test_id_05_a_key_belongs_to_its_caller(session, other_api, make_key):
    headers = key_header("same-key-123")
    theirs = make_session(other_api)
    one = session.append("hello", headers=headers)
    two = theirs.append("hello", headers=headers)
    assert two.status_code == 201
    assert one.json["events"][0]["id"] != two.json["events"][0]["id"]
    colleague = Api(make_key())
    three = colleague.post(
        f"{session.url}/events", {"events": [says("hello")]}, headers=headers
    )
    assert three.json["last_seq"] == 2
    assert "Idempotency-Replayed" not in three.headers


def test_id_07_equal_content_is_no_repetition(session):
    session.append("yes", headers=key_header("k-82"))
    session.append("yes", headers=key_header("k-83"))
    session.append("yes")
    assert session.texts() == ["yes", "yes", "yes"]


def test_id_09_a_lost_answer_is_found_after_the_session_has_closed(
    session, project, make_key
):
    text = make_key()
    writer = Api(text)
    headers = key_header("k-84")
    body = {"events": [says("last one")]}
    first = writer.post(f"{session.url}/events", body, headers=headers)
    session.api.post(f"{session.url}/close")
    again = writer.post(f"{session.url}/events", body, headers=headers)
    assert (again.status_code, again.json) == (201, first.json)
    key = ApiKey.objects.get(prefix=text.split("_")[1])
    ApiKey.objects.filter(pk=key.pk).update(subject="somebody else")
    forget_known_keys()
    bound = writer.post(f"{session.url}/events", body, headers=headers)
    assert (bound.status_code, bound.json["code"]) == (404, "session_not_found")
    assert "events" not in bound.json
    revoke_key(project.id, key.id)
    forget_known_keys()
    assert (
        writer.post(f"{session.url}/events", body, headers=headers).status_code == 401
    )


def test_a_lock_taken_meanwhile_does_not_hide_the_answer(session):
    headers = key_header()
    first = session.append("x", headers=headers)
    session.api.post(f"{session.url}/lock")
    assert session.append("x", headers=headers).json == first.json
    assert session.append("y").status_code == 423


def test_a_refused_append_leaves_the_key_free(session):
    headers = key_header()
    assert session.append("x", expected_seq=7, headers=headers).status_code == 409
    assert session.append("x", headers=headers).status_code == 201
    missing = session.api.post(
        f"{SESSIONS}/{MISSING}/events", {"events": [says("x")]}, headers=headers
    )
    assert missing.status_code == 404


def test_after_a_day_by_the_databases_clock_the_key_is_free(session, clock):
    headers = key_header()
    session.append("x", headers=headers)
    clock.advance(seconds=24 * 3600 - 60)
    assert session.append("x", headers=headers).headers["Idempotency-Replayed"]
    clock.advance(seconds=120)
    assert session.append("x", headers=headers).json["last_seq"] == 2


def test_a_key_and_ids_together_are_one_append(session):
    from uuid import uuid4

    event = says("x", id=str(uuid4()))
    first = session.append(event, headers=key_header("a"))
    second = session.append(event, headers=key_header("b"))
    assert first.json == second.json
    assert Event.objects.filter(session_id=session.id, seq__gt=0).count() == 1
