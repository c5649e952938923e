"""What a run stores grows with what it does; retries of a call change nothing."""

import random

from django.db import connection


def random_text(kilobytes):
    return random.randbytes(kilobytes * 1024 // 2).hex()


def stored_bytes(project):
    """The size of the rows of a project's steps and logs."""
    total = 0
    for table in ("agent_events", "agent_steps"):
        with connection.cursor() as cursor:
            cursor.execute(
                f"SELECT sum(pg_column_size(t.*)) FROM {table} t WHERE project_id = %s",
                [project.id],
            )
            total += cursor.fetchone()[0] or 0
    return total


def test_st_21_storage_grows_linearly(runs, work, project):
    run = runs.create(["a"] * 100)
    before = stored_bytes(project)
    for _ in range(100):
        work.complete(work.claim_one(run=run["id"]), {"state": random_text(20)})
    assert runs.get(run)["state"] == "succeeded"
    assert stored_bytes(project) - before < 2 * 100 * 20 * 1024


def test_the_same_call_again_makes_one_run(api, runs):
    body = {"session": runs.session(), "steps": [{"tool": "a"}]}
    headers = {"Idempotency-Key": "k-1"}
    first = api.post("/api/v1/runs", body, headers=headers)
    again = api.post("/api/v1/runs", body, headers=headers)
    assert first.status_code == again.status_code == 201
    assert again.content == first.content
    assert again.headers["Idempotency-Replayed"] == "true"
    assert len(api.get("/api/v1/runs").json["items"]) == 1
    other = body | {"steps": [{"tool": "b"}]}
    answer = api.post("/api/v1/runs", other, headers=headers)
    assert (answer.status_code, answer.json["code"]) == (422, "idempotency_key_reused")


def test_the_same_claim_again_gives_the_same_steps(api, runs, work):
    runs.create([{"tool": "a", "depends_on": []} for _ in range(3)])
    headers = {"Idempotency-Key": "k-2"}
    body = {"worker": "w", "max": 2, "wait_s": 20}
    first = api.post("/api/v1/steps/claim", body, headers=headers)
    again = api.post("/api/v1/steps/claim", body, headers=headers)
    assert first.json == again.json
    assert len(work.claim(max=5)) == 1


def test_a_refused_call_changes_nothing(api, runs, work):
    run = runs.create(["a"])
    before = runs.get(run), runs.events(run)
    api.post(f"/api/v1/runs/{run['id']}/resume", {})
    api.post(f"/api/v1/runs/{run['id']}/plan", {"plan_version": 9, "append": []})
    api.post(f"/api/v1/steps/{run['steps'][0]['id']}/approve", {})
    api.post(f"/api/v1/runs/{run['id']}/signals/x", {"payload": 1, "nonsense": 2})
    assert (runs.get(run), runs.events(run)) == before
