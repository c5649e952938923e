"""Workers whose sessions others are at: who goes on where."""

import threading
from statistics import median

import pytest
from django.db import connection, transaction

from agentstate.processes import wait_until
from sessions_app.services import get_session
from tests.factories import fetch
from tests.fixtures import Api
from tests.runs_app.conftest import held, log_holds  # noqa: F401

WAITING = """
SELECT 1 FROM pg_stat_activity
 WHERE wait_event_type = 'Lock' AND datname = current_database()
"""
FAN = [{"tool": "a", "depends_on": []}] * 3


@pytest.fixture
def oldest(runs):
    return runs.create(FAN)


def go_on(key, step):
    """Complete a step and claim the next; the run of that."""
    body = {"items": [held(step)], "claim_next": {"worker": "w-1", "tools": ["a"]}}
    answer = Api(key).post("/api/v1/steps/complete", body).json
    assert answer["items"][0]["ok"]
    return [following["run"] for following in answer["steps"]]


def while_locked(project, session, call):
    """Call from another thread while the session is locked, until it waits for that."""
    found = []

    def run():
        found.append(call())
        connection.close()

    thread = threading.Thread(target=run)
    with transaction.atomic():
        get_session(project.id, session, lock=True)
        thread.start()
        assert wait_until(lambda: not thread.is_alive() or bool(fetch(WAITING)), 60)
        did_wait = thread.is_alive()
    thread.join()
    return found[0], did_wait


@pytest.mark.parametrize("others", [0, 1])
def test_who_had_to_wait_leaves_the_session_unless_it_is_all(
    api, runs, work, project, oldest, others
):
    elsewhere = [runs.create(FAN)["id"] for _ in range(others)]
    step = work.claim_one()
    assert step["run"] == oldest["id"]
    following, did_wait = while_locked(
        project, oldest["session"], lambda: go_on(api.key, step)
    )
    assert (following, did_wait) == (elsewhere or [oldest["id"]], True)


def test_while_others_are_at_the_oldest_a_worker_goes_on_with_its_run(
    api, runs, work, project, oldest
):
    """Nine times in ten, where another would be as good; always, where none is."""
    mine = runs.create(FAN)
    step = work.claim_one(run=mine["id"])
    following, did_wait = while_locked(
        project, oldest["session"], lambda: go_on(api.key, step)
    )
    assert (following, did_wait) == ([mine["id"]], False)


READ = "pg_stat_get_xact_tuples_returned('ready_tool'::regclass)"
CLAIM = f"""
SELECT ARRAY(SELECT c::json ->> 'run' FROM unnest(t.claimed) AS c), {READ}
  FROM agentstate_take_turn(
    %s, 'system', NULL, NULL, 'w', %s, 30, NULL, ARRAY['a'], NULL) AS t
"""


def claim_while_held(project, session, most=1, times=1):
    """What runs claims find the steps of, and how much of the queue each reads.

    The session is locked meanwhile; what is claimed is given back.
    """
    found = []

    def run():
        for number in range(times):
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SELECT setseed(%s)", [number / times])
                cursor.execute(f"SELECT {READ}")
                [before] = cursor.fetchone()
                cursor.execute(CLAIM, [project.id, most])
                claimed, read = cursor.fetchone()
                found.append((claimed, read - before))
                transaction.set_rollback(True)
        connection.close()

    thread = threading.Thread(target=run)
    with transaction.atomic():
        get_session(project.id, session, lock=True)
        thread.start()
        thread.join()
    return found


def test_a_claim_does_not_read_through_the_steps_of_a_session_at_work(runs, project):
    oldest = runs.create(FAN * 33)
    others = [runs.create(FAN * 16)["id"] for _ in range(10)]
    found = claim_while_held(project, oldest["session"], times=20)
    assert {run for claimed, _ in found for run in claimed} <= set(others)
    assert all(len(claimed) == 1 for claimed, _ in found)
    # Now and then one does, so that what is oldest of the rest does not wait for ever.
    assert median(read for _, read in found) < 50


def test_looking_further_on_finds_all_there_is_and_no_lower_priority_first(
    runs, project
):
    """Whatever place is looked at: what is left out there is not forgotten."""
    oldest = runs.create(FAN * 60, window=1000)
    others = [runs.create([{"tool": "a"}])["id"] for _ in range(2)]
    lower = runs.create(FAN, priority=-1)["id"]
    ones = claim_while_held(project, oldest["session"], times=20)
    assert {run for claimed, _ in ones for run in claimed} <= set(others)
    assert all(len(claimed) == 1 for claimed, _ in ones)
    for claimed, _ in claim_while_held(project, oldest["session"], 20, times=20):
        assert sorted(claimed[:2]) == sorted(others)
        assert claimed[2:] == [lower] * 3
