"""A run is steered while its session is erased: told that it is not there."""

import threading

import pytest
from django.db import connection, transaction

from agentstate.processes import wait_until
from sessions_app.services import erase_session
from tests.factories import fetch
from tests.fixtures import Api
from tests.runs_app.conftest import Runs

WAITING = """
SELECT 1 FROM pg_stat_activity
 WHERE wait_event_type = 'Lock' AND datname = current_database()
"""
RUN, STEP = "/api/v1/runs/{run}", "/api/v1/steps/{step}"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"{RUN}/pause", {}),
        (f"{RUN}/resume", {}),
        (f"{RUN}/cancel", {}),
        (f"{RUN}/retry", {}),
        (f"{RUN}/signals/go", {"payload": 1}),
        (f"{STEP}/cancel", {}),
        (f"{STEP}/skip", {}),
        (f"{STEP}/retry", {}),
    ],
)
@pytest.mark.parametrize("ended", [False, True])
def test_a_run_that_is_erased_while_a_move_waits(api, project, path, body, ended):
    runs = Runs(api)
    run = runs.create([{"tool": "a", "retry": {"max_attempts": 1}}])
    if ended:
        runs.work.fail(runs.work.claim_one())
    at = path.format(run=run["id"], step=run["steps"][0]["id"])
    answers = []

    def steer():
        answers.append(Api(api.key).post(at, body))
        connection.close()

    thread = threading.Thread(target=steer)
    with transaction.atomic():
        erase_session(project.id, run["session"], actor="system")
        thread.start()
        assert wait_until(lambda: bool(fetch(WAITING)), 60)
    thread.join()
    [answer] = answers
    what = "step" if path.startswith(STEP) else "run"
    assert (answer.status_code, answer.json["code"]) == (404, f"{what}_not_found")
