"""What the tests of runs share: make a run, and be a worker."""

from typing import Any

import pytest


class Work:
    """A worker's calls, in short words."""

    def __init__(self, api: Any) -> None:
        self.api = api

    def claim(self, **wanted: Any) -> list[dict[str, Any]]:
        answer = self.api.post("/api/v1/steps/claim", {"worker": "w-1"} | wanted)
        assert answer.status_code == 200, answer
        return answer.json["steps"]

    def claim_one(self, **wanted: Any) -> dict[str, Any]:
        [step] = self.claim(**wanted)
        return step

    def end(self, call: str, *items: dict[str, Any], **more: Any) -> list[Any]:
        answer = self.api.post(f"/api/v1/steps/{call}", {"items": list(items)} | more)
        assert answer.status_code == 200, answer
        return answer.json["items"]

    def complete(self, step: dict[str, Any], result: Any = None) -> dict[str, Any]:
        [item] = self.end("complete", held(step) | {"result": result})
        return item

    def fail(self, step: dict[str, Any], code: str = "oops", **more: Any) -> Any:
        [item] = self.end("fail", held(step) | {"error": {"code": code}} | more)
        return item

    def release(self, step: dict[str, Any], **more: Any) -> dict[str, Any]:
        [item] = self.end("release", held(step) | more)
        return item

    def beat(self, step: dict[str, Any], **more: Any) -> dict[str, Any]:
        [item] = self.end("heartbeat", held(step) | more)
        return item


def held(step: dict[str, Any]) -> dict[str, Any]:
    return {"step": step["step"], "lease_token": step["lease_token"]}


class Runs:
    """Runs over the API: create, read, steer."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self.work = Work(api)

    def session(self, **fields: Any) -> str:
        answer = self.api.post("/api/v1/sessions", fields)
        assert answer.status_code == 201, answer
        return answer.json["id"]

    def create(self, steps: Any, **fields: Any) -> dict[str, Any]:
        if "session" not in fields:
            fields["session"] = self.session()
        answer = self.api.post("/api/v1/runs", {"steps": plan(steps)} | fields)
        assert answer.status_code == 201, answer
        return answer.json

    def get(self, run: Any) -> dict[str, Any]:
        answer = self.api.get(f"/api/v1/runs/{id_of(run)}")
        assert answer.status_code == 200, answer
        return answer.json

    def move(self, run: Any, move: str, **body: Any) -> dict[str, Any]:
        answer = self.api.post(f"/api/v1/runs/{id_of(run)}/{move}", body)
        assert answer.status_code in (200, 201), answer
        return answer.json

    def decide(self, step: Any, move: str, **body: Any) -> dict[str, Any]:
        answer = self.api.post(f"/api/v1/steps/{id_of(step)}/{move}", body)
        assert answer.status_code == 200, answer
        return answer.json

    def states(self, run: Any) -> list[str]:
        return [step["state"] for step in self.get(run)["steps"]]

    def events(self, run: Any) -> list[dict[str, Any]]:
        """All events of the run, of however long a log."""
        path = f"/api/v1/sessions/{self.get(run)['session']}/events"
        found: list[dict[str, Any]] = []
        query = {"limit": 1000}
        while True:
            page = self.api.get(path, params=query).json
            found += [e for e in page["items"] if e["run"] == id_of(run)]
            if page["next"] is None:
                return found
            query["cursor"] = page["next"]


def plan(steps: Any) -> list[dict[str, Any]]:
    """Names of tools stand for steps that call them."""
    return [{"tool": s} if isinstance(s, str) else s for s in steps]


def id_of(thing: Any) -> str:
    return thing if isinstance(thing, str) else thing.get("step") or thing["id"]


@pytest.fixture
def runs(api: Any) -> Runs:
    return Runs(api)


@pytest.fixture
def work(runs: Runs) -> Work:
    return runs.work


@pytest.fixture
def giver(runs: Runs) -> Any:
    """Make a run with a budget, to be handed on."""
    from tests.runs_app.branches import Branch

    def make(steps: int = 10, **budget: Any) -> Any:
        return Branch.begin(runs, steps, budget=budget)

    return make


@pytest.fixture(autouse=True)
def log_holds(project: Any) -> Any:
    """After each test the log tells the same as the rows, all of them in place."""
    yield
    from runs_app.invariants import broken_invariants
    from runs_app.models import Run
    from runs_app.projection import run_differences
    from sessions_app.models import Session

    sessions = Run.objects.filter(project_id=project.id).values("session_id").distinct()
    for session in Session.objects.filter(id__in=sessions):
        assert list(run_differences(session)) == []
        assert_plan_is_what_the_run_holds(session)
    assert list(broken_invariants(project.id)) == []


def assert_plan_is_what_the_run_holds(session: Any) -> None:
    """A replay at the log's end tells what the API shows of the same run."""
    from runs_app.models import Run, Step
    from runs_app.past import plan_at
    from runs_app.reads import run_json, steps_shown
    from sessions_app.projection import compare

    told = plan_at(session, session.last_seq)
    if told is None:
        return
    run = Run.objects.get(pk=told["run"])
    shown = run_json(run)
    for name in ("key", "agent", "state", "reason", "error", "plan_version"):
        assert told[name] == shown[name], name
    steps = steps_shown(list(Step.objects.of_run(run.project_id, run.id)))
    assert len(steps) == len(told["steps"])
    by_index = {step["index"]: step for step in steps}
    for step in told["steps"]:
        row = by_index[step["index"]]
        if step["wait"] is not None:
            step["wait"] = row["wait"] | step["wait"]
        same = {name: row[name] for name in step if name != "result_seq"}
        del step["result_seq"]
        assert list(compare(session.pk, "plan", step, same)) == []
