"""The key of a handoff against every call of the API: it reaches nothing of its parent.

Calls are taken from the OpenAPI document, with its own examples as bodies. A parameter
that is new there is missing in `names`, and this test fails until it is thought of.
"""

import json
import re

import httpx
import pytest
from drf_spectacular.generators import SchemaGenerator

from access_app.api.keys import KEY_EXAMPLE
from context_app.api.handoffs import EXAMPLE as HANDOFF_EXAMPLE
from memory_app.api.base import FACT_EXAMPLE
from runs_app.api.base import RUN_ID, SESSION_ID, STEP_ID
from tests.context_app.handoffs import RUNS, accept, child, make_own, make_run, offer
from tests.factories import MISSING, calls, key_header, make_session
from tests.fixtures import Api

SECRET = "SECRET-OF-TRIAGE"
METHODS = ("get", "post", "put", "patch", "delete")


@pytest.fixture
def parent(triage):
    """A session with a secret in everything that it can hold."""
    api = triage.api
    triage.append(SECRET, calls("c1", arguments={"q": SECRET}))
    triage.put_state({"k": SECRET}, 0)
    api.put(f"{triage.url}/working-memory/k", {"value": SECRET})
    api.post(f"{triage.url}/compact", {"up_to_seq": 1, "summary": SECRET})
    triage.run = make_run(
        triage,
        [
            {"tool": "think", "args": SECRET, "concurrency_key": "k"},
            {"tool": "pay", "args": SECRET, "requires_approval": True},
        ],
        second_run="parallel",
        input=SECRET,
        labels={"k": SECRET},
    )
    api.put(f"{RUNS}/{triage.run}/working-memory/k", {"value": SECRET})
    body = {"worker": "w", "run": triage.run}
    [claimed] = api.post("/api/v1/steps/claim", body).json["steps"]
    triage.step = claimed["step"]
    begun = api.post("/api/v1/effects/k/begin", {"step": triage.step})
    done = {"token": begun.json["token"], "result": SECRET}
    api.post("/api/v1/effects/k/complete", done)
    api.post("/api/v1/effects/open/begin", {"step": triage.step})
    fact = api.post("/api/v1/memory", {"subject": "ann", "fact": SECRET})
    triage.fact = fact.json["id"]
    api.put("/api/v1/limits/k", {"max_concurrent": 3})
    triage.key = api.post(
        "/api/v1/keys", {"name": SECRET, "scopes": ["runs:read"]}
    ).json["id"]
    stored = api.request(
        "POST",
        f"{triage.url}/artifacts",
        data=SECRET.encode(),
        params={"name": "secret.txt"},
        content_type="application/octet-stream",
    )
    assert stored.status_code == 201, stored
    triage.artifact = stored.json["id"]
    triage.other = offer(triage, agent="archive", task=SECRET)
    return triage


def operations():
    for path, item in SchemaGenerator().get_schema(public=True)["paths"].items():
        for method in METHODS:
            if method in item:
                yield method.upper(), path, item[method]


def names_of(parent):
    """What a path's parameters name of the parent."""
    return {
        "session_id": parent.id,
        "run_id": parent.run,
        "step_id": parent.step,
        "handoff_id": parent.other["id"],
        "fact_id": parent.fact,
        "artifact_id": parent.artifact,
        "key_id": parent.key,
        "member_id": "1",
        "promotion_id": MISSING,
        "key": "k",
        "name": "go",
        "subject": "ann",
        "seq": "1",
    }


def body_of(operation, parent):
    """The document's example, about things of the parent; and its media type."""
    content = operation.get("requestBody", {}).get("content", {})
    for media_type, described in content.items():
        if "examples" not in described:
            return b"bytes", media_type
        [example, *_] = described["examples"].values()
        text = json.dumps(example["value"])
        for shown, meant in (
            (SESSION_ID, parent.id),
            (RUN_ID, parent.run),
            (STEP_ID, parent.step),
            (HANDOFF_EXAMPLE["id"], parent.other["id"]),
            (FACT_EXAMPLE["id"], parent.fact),
            (KEY_EXAMPLE["id"], parent.key),
            (FACT_EXAMPLE["subject"], "ann"),
        ):
            text = text.replace(shown, meant)
        return text.encode(), media_type
    return b"", "application/json"


def held_by(parent):
    """All that the parent's side holds, as its own key sees it."""
    api = parent.api
    paths = [
        parent.url,
        f"{parent.url}/events?limit=1000",
        f"{parent.url}/working-memory",
        f"{parent.url}/working-memory/k",
        f"{parent.url}/compactions",
        f"{parent.url}/run-policy",
        f"{RUNS}?session={parent.id}",
        f"{RUNS}/{parent.run}",
        f"{RUNS}/{parent.run}/working-memory/k",
        f"{RUNS}/{parent.run}/handoffs",
        f"/api/v1/steps/{parent.step}",
        "/api/v1/effects/k",
        "/api/v1/effects/open",
        "/api/v1/limits",
        "/api/v1/memory?subject=ann",
        f"/api/v1/keys/{parent.key}",
        f"/api/v1/artifacts/{parent.artifact}",
        f"{parent.url}/artifacts",
        "/api/v1/project",
        "/api/v1/sessions",
    ]
    return {path: without_clocks(api.get(path).json) for path in paths}


def without_clocks(value):
    """Without what time alone changes."""
    if isinstance(value, dict):
        return {
            k: without_clocks(v)
            for k, v in value.items()
            if k not in ("seconds_left", "last_used_at")
        }
    return [without_clocks(v) for v in value] if isinstance(value, list) else value


def test_a_child_reaches_nothing_of_its_parent_by_any_call(parent):
    made = offer(parent, constraints={"may_remember": False})
    accept(made)
    key = child(made)
    before = held_by(parent)
    found = list(operations())
    assert len(found) > 100
    for method, path, operation in found:
        if path.endswith("/stream"):
            continue  # below, on a real server
        names = names_of(parent)
        url = re.sub(r"\{(\w+)\}", lambda m, names=names: names[m[1]], path)
        data, media_type = body_of(operation, parent)
        # With a key of its own, so that a claim does not wait.
        headers = {} if method == "GET" else key_header()
        answer = key.request(
            method, url, data=data, content_type=media_type, headers=headers
        )
        call = f"{method} {path}"
        assert SECRET.encode() not in answer.content, call
        if "{" in path:
            assert answer.status_code in (403, 404), (call, answer)
        assert answer.status_code < 500, (call, answer)
    assert held_by(parent) == before


def test_a_child_hears_nothing_of_its_parent_in_streams(parent, server):
    made = offer(parent)
    accept(made)
    parent.append(SECRET)
    own = make_own(made)
    own.append("MINE")
    headers = {"Authorization": f"Bearer {made['token']}"}
    with httpx.Client(base_url=server.base_url, headers=headers, timeout=60) as client:
        assert client.get(f"{parent.url}/events/stream").status_code == 404
        assert client.get("/api/v1/events/stream").status_code == 422
        heard = ""
        with client.stream("GET", f"{own.url}/events/stream") as stream:
            for text in stream.iter_text():
                heard += text
                if "MINE" in heard:
                    break
    assert SECRET not in heard


def test_a_child_begins_no_effect_under_a_key_of_its_parent(parent):
    made = offer(parent)
    accept(made)
    key = child(made)
    plan = {"plan_version": 1, "append": [{"tool": "t", "depends_on": []}]}
    steps = key.post(f"{RUNS}/{made['child_run']}/plan", plan).json["steps"]
    before = held_by(parent)
    for name in ("k", "open"):
        body = {"step": steps[-1]["id"], "repeat": True}
        answer = key.post(f"/api/v1/effects/{name}/begin", body)
        assert (answer.status_code, answer.json["code"]) == (404, "effect_not_found")
    assert held_by(parent) == before


def test_a_child_can_ask_what_its_key_may_do(triage):
    made = offer(triage, constraints={"tool_allowlist": ["refund"]})
    told = child(made).get("/api/v1/whoami").json
    assert told["session_id"] == made["child_session"]
    assert told["run_id"] == made["child_run"]
    assert told["tool_allowlist"] == ["refund"]
    [key, *_] = triage.api.get("/api/v1/keys").json["items"]
    assert (key["run_id"], key["tool_allowlist"]) == (made["child_run"], ["refund"])


def test_a_child_makes_no_run_that_its_limits_do_not_bind(triage):
    made = offer(triage, constraints={"max_tool_calls": 1, "tool_allowlist": ["a"]})
    accept(made)
    key = child(made)
    steps = [{"tool": "wire"}]
    for body in (
        {"session": made["child_session"], "steps": steps},
        {"session": made["child_session"], "parent_run": made["child_run"]},
        {"session_key": "another", "steps": steps},
    ):
        answer = key.post(RUNS, body)
        assert (answer.status_code, answer.json["code"]) == (403, "missing_scope")
    again = key.post(f"{RUNS}/{made['child_run']}/again", {"from_step": 0})
    assert (again.status_code, again.json["code"]) == (403, "missing_scope")
    listed = triage.api.get(RUNS, params={"session": made["child_session"]})
    assert [run["id"] for run in listed.json["items"]] == [made["child_run"]]


def test_a_bound_key_puts_no_run_below_one_that_it_does_not_see(triage, make_key):
    mine = make_session(triage.api)
    bound = Api(make_key(session_id=mine.id))
    body = {"session": mine.id, "parent_run": triage.run, "steps": []}
    answer = bound.post(RUNS, body)
    assert (answer.status_code, answer.json["errors"][0]["path"]) == (
        422,
        "parent_run",
    )


@pytest.mark.parametrize(
    "carried",
    [
        {"events": [1]},
        {"last_events": 5},
        {"state_keys": ["a"]},
        {"working_memory": ["a"]},
        {"artifacts": ["a"]},
    ],
)
def test_who_cannot_read_a_session_hands_nothing_of_it_on(triage, make_key, carried):
    key = Api(make_key(["runs:read", "runs:write", "runs:work"]))
    url = f"{RUNS}/{triage.run}/handoffs"
    body = {"agent": "b", "task": "t", "context": carried}
    answer = key.post(url, body)
    assert (answer.status_code, answer.json["code"]) == (403, "missing_scope")
    assert answer.json["scope"] == "sessions:read"
    body = {"agent": "b", "task": "t", "context": {"inline": "all that I know"}}
    assert key.post(url, body).status_code == 201
