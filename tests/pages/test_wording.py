"""What pages say: in the words that stand beside the fields, and never "None"."""

import pytest

from agentstate.templatetags.agentstate import visible
from tests.people import make_session


def text_of(answer):
    return answer.content.decode()


def test_what_has_no_name_is_shown_as_nothing():
    assert visible(None) == ""
    assert visible(0) == "0"


def test_the_tree_of_a_run_without_key_and_agent_says_no_none(api, browse, project):
    session = make_session(api)
    body = {"session": session, "steps": [{"tool": "plan"}]}
    run = api.post("/api/v1/runs", body).json["id"]
    given = {"agent": "helper", "task": "look into it"}
    assert api.post(f"/api/v1/runs/{run}/handoffs", given).status_code == 201
    html = text_of(browse("owner").get(f"/p/{project.slug}/runs/{run}/"))
    assert "data-depth" in html and ">None<" not in html


@pytest.mark.parametrize(
    "address, said",
    [
        ("search/?q=" + "x" * 201, "Words:"),
        ("sessions/?q=" + "x" * 201, "Find:"),
        ("sessions/?hours=5", "Changed:"),
        ("runs/?q=" + "x" * 201, "Find:"),
        ("memory/subject/?subject=u&q=" + "x" * 201, "Find:"),
        ("sessions/{session}/?at=noon", "After event:"),
        ("sessions/{session}/?seq=first", "Event:"),
        ("sessions/{session}/context/?budget=1", "Tokens at most:"),
        ("sessions/{session}/context/?format=x", "Written for:"),
        ("sessions/{session}/context/?at=x", "After event:"),
    ],
)
def test_a_wrong_filter_is_named_as_on_the_page(api, browse, project, address, said):
    session = make_session(api)
    path = address.format(session=session)
    answer = browse("owner").get(f"/p/{project.slug}/{path}")
    assert answer.status_code == 200
    assert f'<li class="note note--error">{said} ' in text_of(answer)


def test_a_state_that_was_written_again_is_told_as_that(api, browse, project):
    session = make_session(api)
    for version in (0, 1):
        body = {"state": {"step": "refund"}, "expected_version": version}
        assert api.put(f"/api/v1/sessions/{session}/state", body).status_code == 200
    page = f"/p/{project.slug}/sessions/{session}/past/"
    client = browse("owner")
    never = "Not changed up to here."
    again = "Written again as it was."
    seen = [text_of(client.get(f"{page}?at={seq}")) for seq in (0, 1, 2)]
    assert [never in html for html in seen] == [True, False, False]
    assert [again in html for html in seen] == [False, False, True]


@pytest.fixture
def step_to_approve(api):
    steps = [{"tool": "pay", "args": {"amount": 1}, "requires_approval": True}]
    body = {"session": make_session(api), "steps": steps}
    run = api.post("/api/v1/runs", body).json["id"]
    return api.get(f"/api/v1/runs/{run}").json["steps"][0]["id"]


def test_a_decision_says_what_was_decided(step_to_approve, browse, project):
    client = browse("owner")
    url = f"/p/{project.slug}/steps/{step_to_approve}/decide/"
    form = {"decision": "approve", "reason": "It is right", "value": "{broken"}
    said = text_of(client.post(url, form, follow=True))
    assert said.count("not JSON") == 1 and "line 1" in said
    said = text_of(client.post(url, form | {"value": ""}, follow=True))
    assert "Approved. The step is pending." in said


def test_a_member_without_a_name_is_asked_for(browse, project):
    url = f"/p/{project.slug}/settings/members/"
    form = {"username": " ", "role": "viewer", "reason": "new"}
    said = text_of(browse("owner").post(url, form, follow=True))
    assert "Name the account." in said and "named ''" not in said
    said = text_of(browse("owner").post(url, form | {"username": "x y"}, follow=True))
    assert "no account named" in said
