"""What the hot calls and the lists read, with many rows beside those that matter."""

import pytest
from django.db import connection, transaction

from runs_app.models import Step

CLAIM = (
    "SELECT * FROM agentstate_claim_steps(%s, 'w', 1, 30, NULL, %s, %s, 'system',"
    " NULL, NULL)"
)
WRITTEN = 10  # buffers of the event, the lease and the rows it changes
HOT_TABLES = ("steps", "ready_steps", "runs", "sessions", "step_leases")
LARGE = pytest.param((100_000, 1_000_000), marks=pytest.mark.soak)


@pytest.fixture(params=[(2_000, 10_000), LARGE])
def crowd(request, runs, work):
    """Blocked and finished steps beside 30 runs whose second step is ready.

    Rolled back at the end: they are rows without a log.
    """
    blocked, finished = request.param
    made = [runs.create(["a", "b", "c"]) for _ in range(30)]
    for step in work.claim(max=30):
        work.complete(step)
    with connection.cursor() as cursor:
        # What other tests have rolled back is swept, as autovacuum does in time.
        for table in HOT_TABLES:
            cursor.execute(f"VACUUM agent_{table}")
    with transaction.atomic():
        copy_steps(made[0]["steps"][2]["id"], blocked, "pending", 1)
        copy_steps(made[0]["steps"][0]["id"], finished, "done", 0)
        with connection.cursor() as cursor:
            for table in HOT_TABLES:
                cursor.execute(f"ANALYZE agent_{table}")
        yield made
        transaction.set_rollback(True)


def copy_steps(step_id, count, state, deps_left):
    names = [field.column for field in Step._meta.fields]
    changed = {
        "id": "agentstate_new_id()",
        "run_id": "agentstate_new_id()",
        "state": f"'{state}'",
        "deps_left": str(deps_left),
    }
    columns = ", ".join(f'"{name}"' for name in names)
    values = ", ".join(changed.get(name, f's."{name}"') for name in names)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO agent_steps ({columns}) SELECT {values}"
            " FROM agent_steps s, generate_series(1, %s) WHERE s.id = %s",
            [count, step_id],
        )


def explain(query, arguments, options="FORMAT JSON"):
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN ({options}) {query}", arguments)
        return cursor.fetchone()[0][0]["Plan"]


def buffers_of(query, arguments):
    """The buffers that a statement reads, those of its functions included."""
    plan = explain(query, arguments, "ANALYZE, BUFFERS, FORMAT JSON")
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def test_24_a_claim_reads_fewer_than_50_buffers(crowd, project):
    """Of what it reads; its writing, the log included, takes some ten more.

    How many more hangs on the depth of the indexes, and so on the tests before.
    """
    for wanted in ((None, None), (["b"], None), (None, [""])):
        arguments = [project.id, *wanted]
        buffers_of(CLAIM, arguments)  # the functions' plans are made
        read = [buffers_of(CLAIM, arguments) for _ in range(5)]
        print(f"claim by {wanted}: {read} buffers")
        assert max(read) < 50 + WRITTEN


def nodes(plan):
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id FROM agent_ready_steps WHERE project_id = %s"
        " AND (rank, id) > (-5, 0) ORDER BY rank, id LIMIT 1 FOR UPDATE SKIP LOCKED",
        "SELECT id FROM agent_ready_steps WHERE project_id = %s AND tool = 'b'"
        " ORDER BY rank, id LIMIT 1 FOR UPDATE SKIP LOCKED",
        "SELECT id FROM agent_ready_steps WHERE project_id = %s AND agent = ''"
        " ORDER BY rank, id LIMIT 1 FOR UPDATE SKIP LOCKED",
        "SELECT id FROM agent_steps WHERE project_id = %s"
        " AND run_id = '0199b2a0-9c01-7a44-9d3e-0f5a6b7c8d9e' AND ordinal = 3",
        "SELECT id FROM agent_runs WHERE project_id = %s ORDER BY id DESC LIMIT 10",
        "SELECT id FROM agent_runs WHERE project_id = %s AND state = 'running'"
        " ORDER BY id DESC LIMIT 10",
        "SELECT id FROM agent_runs WHERE project_id = %s AND n_retrying > 0"
        " ORDER BY id DESC LIMIT 10",
        "SELECT step_id FROM agent_timers WHERE project_id = %s"
        " AND due_at <= now() ORDER BY due_at LIMIT 10",
        "SELECT step_id FROM agent_step_waits WHERE project_id = %s"
        " AND kind = 'approval' ORDER BY step_id LIMIT 10",
    ],
)
def test_31_hot_statements_have_an_index(crowd, project, query):
    with connection.cursor() as cursor:
        # The tables are small here: ask whether there is a way, not whether it pays.
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("SET LOCAL enable_sort = off")
        cursor.execute("SET LOCAL enable_bitmapscan = off")
    kinds = {node["Node Type"] for node in nodes(explain(query, [project.id]))}
    assert kinds & {"Index Scan", "Index Only Scan"}
    assert "Seq Scan" not in kinds and "Sort" not in kinds


def queries_of(call):
    from django.test.utils import CaptureQueriesContext

    with CaptureQueriesContext(connection) as captured:
        assert call().status_code == 200
    return len(captured)


def test_lists_cost_the_same_whatever_their_length(api, runs):
    run = runs.create([{"tool": "a", "requires_approval": True, "depends_on": []}])
    paths = ["/api/v1/runs", f"/api/v1/runs/{run['id']}", "/api/v1/approvals"]
    few = [queries_of(lambda: api.get(path)) for path in paths]  # noqa: B023
    for _ in range(5):
        runs.create([{"tool": "a", "requires_approval": True} for _ in range(3)])
    many = [queries_of(lambda: api.get(path)) for path in paths]  # noqa: B023
    assert many <= few
    assert max(many) <= 8


def test_a_call_of_a_worker_is_one_round_trip(api, runs, work):
    runs.create(["a", "b"])
    claim = {"worker": "w"}
    work.claim_one(run=None)
    runs.create(["c"])
    api.get("/api/v1/runs")  # the key is known for a moment
    assert queries_of(lambda: api.post("/api/v1/steps/claim", claim)) <= 2
