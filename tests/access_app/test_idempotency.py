"""Idempotency-Key: on any call that writes, shown here on POST /api/v1/members."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from django.contrib.auth.models import User
from django.db import connection

from access_app.idempotency import delete_expired_idempotency, forget_answers
from access_app.jobs import app, sweep_idempotency
from access_app.models import IdempotencyRecord, Member
from agentstate.ids import new_id
from agentstate.processes import wait_until
from tests.fixtures import Api, issue_key

URL = "/api/v1/members"
ROOT = Path(__file__).resolve().parent.parent.parent


def make_body(role="viewer"):
    return {"username": make_username(), "role": role}


def make_username():
    return User.objects.create_user(f"u-{new_id()}").username


def send(api, body, key="k-1", path=URL, method="POST"):
    return api.request(method, path, json=body, headers={"Idempotency-Key": key})


def members_of(project):
    return Member.objects.filter(project=project).count()


def test_a_retry_is_given_the_first_answer_again(api, project):
    body = make_body()
    first = send(api, body)
    again = send(api, body)
    assert first.status_code == again.status_code == 201
    assert first.content == again.content
    assert "Idempotency-Replayed" not in first.headers
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.headers["Content-Type"] == "application/json"
    assert members_of(project) == 1


def test_an_answer_without_a_body_is_given_again_too(api):
    send(api, make_body("owner"), "k-0")
    made = send(api, make_body()).json
    path = f"{URL}/{made['id']}"
    first = send(api, None, "k-2", path, "DELETE")
    again = send(api, None, "k-2", path, "DELETE")
    assert (first.status_code, first.content) == (204, b"")
    assert (again.status_code, again.content) == (204, b"")
    assert again.headers["Idempotency-Replayed"] == "true"
    assert api.get(path).status_code == 404


def test_id_02_another_body_with_a_used_key_is_422(api, project):
    first_body, second_body = make_body(), make_body()
    first = send(api, first_body)
    second = send(api, second_body)
    assert (second.status_code, second.json["code"]) == (422, "idempotency_key_reused")
    assert second.json["errors"][0]["path"] == "Idempotency-Key"
    names = [m["username"] for m in api.get(URL).json["items"]]
    assert names == [first_body["username"]]
    assert send(api, first_body).content == first.content


def test_id_02_the_method_is_part_of_the_key(api, project):
    send(api, make_body("owner"), "k-0")
    path = f"{URL}/{send(api, make_body(), 'k-3').json['id']}"
    changed = send(api, {"role": "operator"}, "k-4", path, "PATCH")
    removed = send(api, {"role": "operator"}, "k-4", path, "DELETE")
    assert (changed.status_code, removed.status_code) == (200, 204)
    assert members_of(project) == 1


def test_id_03_one_key_on_two_paths_is_two_calls(api, project):
    send(api, make_body("owner"), "k-0")
    members = [send(api, make_body(), f"k-a{n}").json for n in range(2)]
    with ThreadPoolExecutor(2) as pool:
        answers = list(
            pool.map(
                lambda m: in_thread(
                    send, api, {"role": "operator"}, "k-5", f"{URL}/{m['id']}", "PATCH"
                ),
                members,
            )
        )
    assert [a.json["id"] for a in answers] == [m["id"] for m in members]


@pytest.mark.parametrize("callers", [20, 50])
def test_id_03_parallel_calls_with_one_key_have_one_effect(api, project, callers):
    body = make_body()
    with ThreadPoolExecutor(callers) as pool:
        answers = list(
            pool.map(lambda _: in_thread(send, api, body, "k-79"), range(callers))
        )
    done = [a for a in answers if a.status_code == 201]
    waiting = [a for a in answers if a.status_code == 409]
    assert len(done) + len(waiting) == callers
    assert done
    assert len({a.content for a in done}) == 1
    assert {a.json["code"] for a in waiting} <= {"idempotency_in_progress"}
    assert all(a.headers["Retry-After"] == "1" for a in waiting)
    assert members_of(project) == 1
    assert send(api, body, "k-79").content == done[0].content


def in_thread(function, *args):
    """A thread's connection is its own, and it is the thread that returns it."""
    try:
        return function(*args)
    finally:
        connection.close()


def test_id_04_a_key_in_flight_is_409_and_a_crash_frees_it(api, project):
    """The first call is held inside its transaction, then its process is killed."""
    body = make_body()
    with psycopg.connect(os.environ["DATABASE_URL"]) as blocker:
        # The new member refers to the project, whose row its commit has to wait for.
        blocker.execute(
            "SELECT FROM access_projects WHERE id = %s FOR UPDATE", [project.id]
        )
        first = send_from_a_process(api.key, body)
        try:
            assert wait_until(lambda: is_held_up(first), 120), first.communicate()
            assert first.poll() is None, first.communicate()
            second = send(api, body, "k-80")
            assert second.status_code == 409
            assert second.json["code"] == "idempotency_in_progress"
            assert second.headers["Retry-After"] == "1"
        finally:
            first.kill()
            first.wait()
    answers = []

    def is_free():
        answers.append(send(api, body, "k-80"))
        return answers[-1].status_code != 409

    assert wait_until(is_free, 60)
    assert answers[-1].status_code == 201
    assert members_of(project) == 1


def send_from_a_process(key, body):
    script = (
        "import django, json, os; django.setup()\n"
        "from tests.fixtures import Api\n"
        "from tests.access_app.test_idempotency import send\n"
        "print(send(Api(os.environ['KEY']), json.loads(os.environ['BODY']), 'k-80'))\n"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=os.environ | {"KEY": key, "BODY": json.dumps(body)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def is_held_up(process):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return cursor.fetchone()[0] > 0 or process.poll() is not None


def test_id_05_a_key_belongs_to_its_caller(api, other_api, project, make_key):
    """Two projects, and two keys of one project, each have their own."""
    body = make_body()
    colleague = Api(make_key())
    mine = send(api, body, "same-key-123")
    theirs = send(other_api, body, "same-key-123")
    refused = send(colleague, body, "same-key-123")
    assert (mine.status_code, theirs.status_code) == (201, 201)
    assert mine.json["id"] != theirs.json["id"]
    assert refused.json["code"] == "already_member"  # it ran, and was no replay


def test_a_refused_call_is_not_kept(api, project):
    body = {"username": f"later-{new_id()}", "role": "viewer"}
    assert send(api, body).status_code == 422
    User.objects.create_user(body["username"])
    again = send(api, body)
    assert again.status_code == 201
    assert "Idempotency-Replayed" not in again.headers


def test_a_key_is_not_looked_at_where_nothing_is_written(api):
    answer = api.get(URL, headers={"Idempotency-Key": "x" * 300})
    assert answer.status_code == 200


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb", "a\x7f", "\xe9"])
def test_a_key_is_1_to_255_printable_characters(api, project, key):
    answer = send(api, make_body(), key)
    assert (answer.status_code, answer.json["code"]) == (422, "bad_idempotency_key")
    assert answer.json["errors"][0]["path"] == "Idempotency-Key"
    assert members_of(project) == 0


def test_a_key_may_be_as_long_as_255(api):
    assert send(api, make_body(), "x" * 255).status_code == 201


def test_a_retry_with_a_key_that_lost_its_scope_learns_nothing(api, project):
    narrow = Api(issue_key(project, ["sessions:read"]))
    send(api, make_body())
    assert send(narrow, make_body()).json["code"] == "missing_scope"


def test_after_a_day_the_key_is_free_again(api, project, clock):
    body, other = make_body(), make_body()
    send(api, body)
    clock.advance(seconds=24 * 3600 - 60)
    assert send(api, body).headers["Idempotency-Replayed"] == "true"
    clock.advance(seconds=120)
    assert send(api, other).status_code == 201
    assert send(api, other).headers["Idempotency-Replayed"] == "true"


def test_expired_answers_are_deleted_in_batches(api, project, clock):
    for n in range(3):
        send(api, make_body(), f"old-{n}")
    clock.advance(seconds=24 * 3600 + 1)
    send(api, make_body(), "new")
    records = IdempotencyRecord.objects.filter(project_id=project.id)
    assert delete_expired_idempotency(limit=2) == 2
    sweep_idempotency(timestamp=0)
    assert records.count() == 1


def test_the_sweep_runs_by_itself():
    periodic = {
        task.task.name for task in app.periodic_registry.periodic_tasks.values()
    }
    assert "access_app.sweep_idempotency" in periodic


def test_the_expired_are_found_by_their_index(project):
    with connection.cursor() as cursor:
        cursor.execute("SET enable_seqscan = off")
        cursor.execute(
            "EXPLAIN SELECT ctid FROM access_idempotency"
            " WHERE project_id = %s AND expires_at <= agentstate_now()"
            " ORDER BY expires_at LIMIT 10",
            [project.id],
        )
        plan = "\n".join(row[0] for row in cursor.fetchall())
        cursor.execute("RESET enable_seqscan")
    assert "Index Cond: ((project_id = " in plan
    assert "(expires_at <= agentstate_now())" in plan.split("Index Cond")[1]


def test_answers_about_a_session_can_be_forgotten(project, api):
    send(api, make_body())
    records = IdempotencyRecord.objects.filter(project_id=project.id)
    session_id = new_id()
    records.update(session_id=session_id)
    assert forget_answers(project.id, new_id()) == 0
    assert forget_answers(project.id, session_id) == 1
    assert not records.exists()
