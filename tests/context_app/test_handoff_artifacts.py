"""A handoff gives the other agent the files that were named, and no others."""

from sessions_app.projection import differences_of
from tests.artifacts.calls import ARTIFACTS, content, delete, listed, objects, stored
from tests.context_app.handoffs import (
    RUNS,
    accept,
    child,
    make_own,
    offer,
)
from tests.factories import error_of


def test_the_child_reads_exactly_what_was_named(triage, project):
    old = stored(triage, b"old", "invoice.pdf")
    new = stored(triage, b"new", "invoice.pdf")
    by_id = stored(triage, b"by id", "terms.txt")
    secret = stored(triage, b"secret", "salaries.csv")
    made = offer(triage, context={"artifacts": ["invoice.pdf", by_id["id"]]})
    own = make_own(made)
    files = {a["name"]: a for a in listed(own)}
    assert set(files) == {"invoice.pdf", "terms.txt"}
    key = child(made)
    assert content(key, files["invoice.pdf"]).content == b"new"
    assert content(key, files["terms.txt"]).content == b"by id"
    for each in (old, new, by_id, secret):
        for path in ("", "/content", "/link"):
            answer = key.get(f"{ARTIFACTS}/{each['id']}{path}")
            assert answer.status_code == 404, answer
    bundle = accept(made)["bundle"]
    assert [(f["id"], f["name"]) for f in bundle["artifacts"]] == [
        (a["id"], a["name"]) for a in reversed(listed(own))
    ]
    assert "invoice.pdf" in own.payloads(types="message.user")[0]["content"]
    created = own.events(types="artifact.created")
    assert [e["payload"]["source"] for e in created] == [new["id"], by_id["id"]]
    # The bytes are shared: nothing was copied, and neither end breaks the other.
    assert len(objects(project)) == 4
    assert delete(triage.api, new).status_code == 204
    assert content(key, files["invoice.pdf"]).content == b"new"
    assert delete(key, files["invoice.pdf"]).status_code == 204
    assert len(objects(project)) == 3
    for session in (triage, own):
        assert list(differences_of(project.id, session.id)) == []


def test_what_is_not_there_is_not_handed_over(triage, api):
    stored(triage, b"here", "here.txt")
    body = {
        "agent": "billing",
        "task": "x",
        "context": {"artifacts": ["here.txt", "?"]},
    }
    before = triage.get()["last_seq"]
    refused = triage.api.post(f"{RUNS}/{triage.run}/handoffs", body)
    assert error_of(refused) == (422, "invalid", "context.artifacts[1]")
    assert triage.get()["last_seq"] == before


def test_an_artifact_may_be_named_in_capital_letters(triage):
    artifact = stored(triage, b"x", "a.txt")
    made = offer(triage, context={"artifacts": [artifact["id"].upper()]})
    assert [each["name"] for each in accept(made)["bundle"]["artifacts"]] == ["a.txt"]
