"""A tree of runs that share budgets, worked on from all its branches."""

from tests.context_app.handoffs import child

USES = ("tool_calls", "tokens", "cost")


def fan(count):
    return [{"tool": "a", "depends_on": []} for _ in range(count)]


class Branch:
    """A run as its own worker sees it, and what is handed on from it."""

    def __init__(self, runs, run, api=None):
        self.runs, self.id = runs, run
        self.api = api or runs.api

    @classmethod
    def begin(cls, runs, steps=10, **fields):
        """A run of its own session that a session's own key works on."""
        return cls(runs, runs.create(fan(steps), **fields)["id"])

    def child(self, steps=10, **fields):
        """A child run without a handoff: nobody waits for it."""
        return Branch.begin(self.runs, steps, parent_run=self.id, **fields)

    def claim(self):
        """Claim one step; None if there was none to be had."""
        claim = {"worker": "w", "run": self.id}
        steps = self.api.post("/api/v1/steps/claim", claim).json["steps"]
        return steps[0] if steps else None

    def complete(self, step, **usage):
        item = {"step": step["step"], "lease_token": step["lease_token"]}
        items = [item | {"result": 1, "usage": usage}]
        answer = self.api.post("/api/v1/steps/complete", {"items": items})
        return answer.json["items"][0]

    def work(self, **usage):
        """Claim one step and complete it; False if there was none to be had."""
        step = self.claim()
        if step is not None:
            ended = self.complete(step, **usage)
            assert ended["ok"], ended
        return step is not None

    def add(self, steps):
        version = self.api.get(f"/api/v1/runs/{self.id}").json["plan_version"]
        body = {"plan_version": version, "append": steps}
        answer = self.api.post(f"/api/v1/runs/{self.id}/plan", body)
        assert answer.status_code == 200, answer

    def hand_on(self, steps=10, **constraints):
        body = {"agent": "b", "task": "t", "constraints": constraints}
        answer = self.api.post(f"/api/v1/runs/{self.id}/handoffs", body)
        assert answer.status_code == 201, answer
        below = Branch(self.runs, answer.json["child_run"], child(answer.json))
        below.handoff = f"/api/v1/handoffs/{answer.json['id']}"
        below.api.post(f"{below.handoff}/accept", {"by": "b-1"})
        below.add(fan(steps))
        return below

    def give_back(self):
        answer = self.api.post(f"{self.handoff}/result", {"summary": "Done"})
        assert answer.status_code == 200, answer
        self.runs.api.post(f"/api/v1/runs/{self.id}/cancel", {})
        assert self.run["state"] in ("succeeded", "cancelled")

    def cancel(self):
        return self.runs.move(self.id, "cancel")["state"]

    def erase(self):
        """Erase the session that holds it."""
        answer = self.runs.api.delete(f"/api/v1/sessions/{self.run['session']}")
        assert answer.status_code == 204, answer

    @property
    def run(self):
        return self.runs.get(self.id)

    @property
    def state(self):
        return self.run["state"]

    def below(self):
        """What the runs below it were charged."""
        below = self.run["budget"]["below"]
        return tuple(below[name] for name in USES)

    def tree(self):
        return self.runs.api.get(f"/api/v1/runs/{self.id}/tree").json

    def spent(self):
        spent = self.tree()["budget"]["spent"]
        return tuple(spent[name] for name in USES)

    def charges(self):
        told = [e for e in self.runs.events(self.id) if e["type"] == "run.charged"]
        return [tuple(e["payload"][name] for name in ("child", *USES)) for e in told]

    def refusal(self):
        """Why its last claim got nothing."""
        assert not self.work()
        error = self.run["error"]
        return error["code"], error["budget"], error["run"]
