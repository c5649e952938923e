"""The benchmark measures what it says: its requests do what they are to do."""

import os
from typing import Any

from agentstate.embedded import POSTGRES_BIN
from bench.client import Measured
from bench.measures import Bench
from bench.postgres import PgBench
from bench.stack import Stack
from bench.steps import StepBench
from runs_app.models import Step
from sessions_app.models import Session
from sessions_app.projection import differences_of
from tests.server import Server


def test_every_append_that_is_counted_is_in_a_log(
    server: Server, project: Any, make_key: Any
) -> None:
    bench = Bench(Stack(server.port, make_key(), "", ""), seconds=0.2)
    counts = [
        len(bench.appends(1).times),
        len(bench.appends(3, turns=True, with_key=True).times) * 3,
        len(bench.appends(2, events=10, one_session=True).times) * 10,
    ]
    assert all(counts)
    lengths = Session.objects.filter(project_id=project.id).values_list(
        "last_seq", flat=True
    )
    assert sum(lengths) == sum(counts)


def test_reading_and_streaming_are_measured(server: Server, make_key: Any) -> None:
    bench = Bench(Stack(server.port, make_key(), "", ""), seconds=0.1)
    session = bench.new_session()
    bench.append(session, [{"type": "acme.note", "payload": {}}] * 3)
    assert len(bench.load_log(session, 2000, 2).times) == 2
    assert len(bench.reads(f"/sessions/{session}/events?last=50", 3).times) == 3
    assert len(bench.stream_delay(3).times) == 3


def test_pgbench_runs_on_the_same_database() -> None:
    assert (POSTGRES_BIN / "pgbench").exists()
    pgbench = PgBench(os.environ["DATABASE_URL"], seconds=1)
    assert pgbench.insert(1) > 0
    assert pgbench.counter(2, rows=3) > 0


def test_every_step_life_that_is_counted_is_a_step_done(
    server: Server, project: Any, make_key: Any
) -> None:
    bench = Bench(Stack(server.port, make_key(), "", ""), seconds=0.2)
    steps = StepBench(bench, PgBench(os.environ["DATABASE_URL"], seconds=1))
    counts = [
        len(steps.lives(1, 1).times),
        len(steps.lives(1, 20, chained=True).times),
    ]
    assert all(counts)
    done = Step.objects.filter(project_id=project.id, state="done")
    assert done.count() == sum(counts)
    before = done.count()
    for size, chained in ((1, False), (20, True)):
        lived = steps.pgbench_lives(1, size, chained=chained)
        assert lived > 0
        assert done.count() == before + lived  # in one second
        before = done.count()
    for session in Session.objects.filter(project_id=project.id):
        assert list(differences_of(project.id, session.pk)) == []


def test_quantiles_are_milliseconds_of_the_sorted_times() -> None:
    measured = Measured([0.004, 0.001, 0.003, 0.002], elapsed=2)
    assert (measured.rate, measured.quantile(0.5), measured.quantile(0.99)) == (2, 3, 4)
