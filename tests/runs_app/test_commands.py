"""manage.py check_invariants and sweep."""

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from runs_app.invariants import broken_invariants
from runs_app.projection import run_differences
from sessions_app.models import Session


def test_what_holds_is_said_to_hold(project, runs, work):
    runs.create(["a", "b"])
    work.claim_one()
    out = StringIO()
    call_command("check_invariants", project=project.slug, stdout=out)
    assert "0 broken" in out.getvalue()


DAMAGE = {
    "a step in progress has a lease": "DELETE FROM agent_step_leases",
    "the counters of a run are right": "UPDATE agent_runs SET n_ready = 7",
    "a lease belongs to a step in progress": (
        "UPDATE agent_steps SET state = 'pending' WHERE state = 'in_progress'"
    ),
    "a pending step that waits for no other is ready or held": (
        "DELETE FROM agent_ready_steps"
    ),
    "no step waits for a signal that is there": (
        "INSERT INTO agent_signals (id, project_id, session_id, run_id, name,"
        " signal_id, payload, sender, received_at)"
        " SELECT gen_random_uuid(), project_id, session_id, run_id, name, 'x', 'null',"
        " '', now() FROM agent_step_waits WHERE kind = 'signal'"
    ),
    "a step that waits for time has a timer": "DELETE FROM agent_timers",
    "an ended run has no open step": "UPDATE agent_runs SET state = 'succeeded'",
}


@pytest.mark.parametrize("rule", DAMAGE)
def test_what_is_broken_is_found(project, runs, work, rule):
    runs.create(
        [
            {"tool": "a", "depends_on": []},
            {"tool": "b", "depends_on": []},
            {"signal": {"name": "go", "timeout_s": 60}, "depends_on": []},
        ]
    )
    work.claim_one()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(DAMAGE[rule])
        assert rule in {broken.rule for broken in broken_invariants(project.id)}
        with pytest.raises(CommandError):
            call_command("check_invariants", project=project.slug, stdout=StringIO())
        transaction.set_rollback(True)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE agent_runs SET state = 'failed'",
        "UPDATE agent_runs SET tool_calls = 9",
        "UPDATE agent_steps SET worker = 'someone'",
        "UPDATE agent_steps SET result_seq = 1 WHERE state = 'done'",
        "UPDATE agent_steps SET args = '{}'",
        "UPDATE agent_steps SET started_at = now() WHERE state = 'done'",
        "DELETE FROM agent_steps",
    ],
)
def test_a_row_that_is_not_what_the_log_says_is_found(project, runs, work, damage):
    run = runs.create([{"tool": "a", "args": [1]}, {"tool": "b", "args": [2]}])
    work.complete(work.claim_one(), "x")
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(damage)
        session = Session.objects.get(id=run["session"])
        assert list(run_differences(session)) != []
        transaction.set_rollback(True)


def test_sweep_does_what_is_due(project, runs, work, clock):
    run = runs.create(["a"])
    work.claim_one()
    clock.advance(seconds=31)
    out = StringIO()
    call_command("sweep", project=project.slug, stdout=out)
    assert "1 leases" in out.getvalue()
    assert runs.states(run) == ["pending"]
