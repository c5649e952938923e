"""Workers whose sessions others are at: who goes on where."""

import threading

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
