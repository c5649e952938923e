"""What was forgotten is gone from what contexts and handoffs made of it, too."""

from uuid import uuid4

import pytest

from sessions_app.projection import differences_of
from tests.context_app.handoffs import HANDOFFS, RUNS, child
from tests.factories import says
from tests.memory_app.calls import forget, places_with

SIDES = ("session", "child_session")


@pytest.mark.parametrize("scope", ["everywhere", "subject"])
def test_a_handoff_and_a_summary_are_forgotten_with_their_source(
    triage, project, scope
):
    word = f"ZQ{uuid4().hex[:10].upper()}7"
    told = f"The badge number is {word}"
    triage.append(says(told))
    seq = triage.get()["last_seq"]
    fact = triage.api.post(
        "/api/v1/memory",
        {
            "subject": "ann",
            "fact": told,
            "source": {"session": triage.id, "seqs": [seq]},
        },
    ).json
    triage.put_state({"badge": word}, 0)
    triage.api.put(f"{triage.url}/working-memory/draft", {"value": [word]})
    carried = {
        "facts": [fact["id"]],
        "state_keys": ["badge"],
        "working_memory": ["draft"],
        "events": [seq],
        "inline": {"hint": word},
    }
    made = triage.api.post(
        f"{RUNS}/{triage.run}/handoffs",
        {"agent": "billing", "task": f"Check {word}", "context": carried},
        headers={"Idempotency-Key": "offer"},
    ).json
    result = {"summary": f"It is {word}", "data": {"badge": word}}
    for name, body in (("accept", {"by": "b-1"}), ("result", result)):
        taken = child(made).post(
            f"{HANDOFFS}/{made['id']}/{name}", body, headers={"Idempotency-Key": name}
        )
        assert taken.status_code == 200, taken
    suggested = triage.api.post(
        f"{RUNS}/{triage.run}/handoffs/suggest",
        {"task": f"badge {word}"},
        headers={"Idempotency-Key": "suggest"},
    )
    assert suggested.status_code == 200, suggested
    summary = {"summary": told, "up_to_seq": seq, "force": True}
    compacted = triage.api.post(
        f"{triage.url}/compact", summary, headers={"Idempotency-Key": "compact"}
    )
    assert compacted.status_code == 201, compacted
    assert {"agent_events.payload", "agent_memory.fact"} <= set(places_with(word))
    if scope == "subject":
        done = triage.api.post("/api/v1/subjects/ann/forget", {})
        assert done.status_code == 200, done
    else:
        forget(triage.api, fact["id"], scope="everywhere")
    assert places_with(word) == []
    shown = triage.api.get(f"{HANDOFFS}/{made['id']}")
    assert shown.status_code == 200, shown
    assert shown.json["bundle"]["budget_tokens"] == 4000
    found = [list(differences_of(project.id, made[n])) for n in SIDES]
    assert found == [[], []]
