"""What a role does not see it sees nowhere: pages, sockets, admin, search."""

import json
import re

import pytest
from django.test import Client

from access_app.roles import HIDE_FROM_VIEWERS
from access_app.services import change_settings
from tests.people import Socket, cookie_of, dial

__all__ = ["dial"]

SECRET = "xylophone-7391"  # said everywhere that something can be said


@pytest.fixture
def said(api, project):
    """The secret in every payload that there is."""
    session = api.post(
        "/api/v1/sessions", {"key": "s", "subject": "u-1", "state": {"a": SECRET}}
    ).json["id"]
    events = [
        ("message.user", {"content": SECRET}),
        ("tool.call", {"tool_call_id": "c", "name": "f", "arguments": {"x": SECRET}}),
    ]
    body = {"events": [{"type": t, "payload": p} for t, p in events]}
    assert api.post(f"/api/v1/sessions/{session}/events", body).status_code == 201
    plan = [
        {"tool": "a", "args": {"x": SECRET}},
        {"tool": "b", "retry": {"max_attempts": 1}, "on_exhausted": "hold"},
        {"tool": "c", "args": {"x": SECRET}, "requires_approval": True},
    ]
    run = api.post(
        "/api/v1/runs", {"session": session, "steps": plan, "input": {"x": SECRET}}
    ).json
    for call, rest in (
        ("complete", {"result": {"x": SECRET}}),
        ("fail", {"error": {"code": "e", "message": SECRET}}),
    ):
        claim = {"worker": "w", "run": run["id"]}
        [step] = api.post("/api/v1/steps/claim", claim).json["steps"]
        item = {"step": step["step"], "lease_token": step["lease_token"], **rest}
        answer = api.post(f"/api/v1/steps/{call}", {"items": [item]})
        assert answer.status_code == 200, answer
    source = {"session": session, "seqs": [2]}
    fact = {"subject": "u-1", "fact": f"Plays the {SECRET}", "source": source}
    fact_id = api.post("/api/v1/memory", fact).json["id"]
    change_settings(project.id, {HIDE_FROM_VIEWERS: True}, actor="test", reason="t")
    return {
        "session": session,
        "run": run["id"],
        "step": run["steps"][0]["id"],
        "fact": fact_id,
    }


def pages_of(said):
    session, run, fact = said["session"], said["run"], said["fact"]
    return [
        "",
        "runs/",
        f"runs/{run}/",
        "inbox/",
        "inbox/?kind=hold",
        "workers/",
        "sessions/",
        f"sessions/{session}/",
        f"sessions/{session}/?at=3",
        f"sessions/{session}/events/",
        f"sessions/{session}/events/2/",
        f"sessions/{session}/events/2/payload.json",
        f"sessions/{session}/past/?at=3",
        f"sessions/{session}/state.json",
        f"sessions/{session}/context/",
        f"search/?q={SECRET}",
        "artifacts/",
        "memory/",
        "memory/?view=facts",
        "memory/policy/",
        "memory/subject/?subject=u-1",
        f"memory/facts/{fact}/",
        "audit/",
        "settings/",
    ]


def test_an_operator_would_see_it(said, browse, project):
    """The pages below do hold it, for those who may see it."""
    client = browse("owner")
    holding = [
        path
        for path in pages_of(said)
        if SECRET in client.get(f"/p/{project.slug}/{path}").content.decode()
    ]
    assert len(holding) >= 12


def test_a_viewer_sees_structure_and_no_payload(said, browse, project):
    client = browse("viewer")
    seen = {}
    for path in pages_of(said):
        for headers in ({}, {"HX-Request": "true"}):
            answer = client.get(f"/p/{project.slug}/{path}", headers=headers)
            asked = path.endswith(SECRET)  # a refusal repeats nothing either
            assert SECRET not in answer.content.decode(), (path, asked)
            seen[path] = answer.status_code
    assert {p: s for p, s in seen.items() if s == 200}.keys() == {
        "",
        "runs/",
        f"runs/{said['run']}/",
        "inbox/",
        "inbox/?kind=hold",
        "workers/",
        "sessions/",
        f"sessions/{said['session']}/",
        f"sessions/{said['session']}/?at=3",
        f"sessions/{said['session']}/events/",
    }
    log = client.get(f"/p/{project.slug}/sessions/{said['session']}/").content.decode()
    assert "tool.call" in log and "step.failed" in log


def test_a_viewer_cannot_guess_payloads_by_searching_them(said, browse, project):
    client = browse("viewer")
    url = f"/p/{project.slug}/sessions/{said['session']}/"
    rows = {
        q: re.findall(r'id="e(\d+)"', client.get(f"{url}{path}?q={q}").content.decode())
        for q in ("xylo", "zzzz")
        for path in ("", "events/")
    }
    assert rows["xylo"] == rows["zzzz"] != []


def test_a_viewers_socket_tells_no_payload(said, server, browse, dial, project):
    viewer = cookie_of(browse("viewer"))
    for format_ in ("html", "notice", "json", None):
        for what in ({"session": said["session"], "after_seq": 0}, {"feed": True}):
            socket = Socket(dial(origin=server.base_url, headers=viewer))
            socket.send(action="hello", project=project.slug)
            socket.next("welcome")
            socket.send(action="subscribe", id="x", format=format_, **what)
            assert SECRET not in json.dumps(socket.next())


def test_a_viewer_who_is_staff_sees_no_payload_in_the_admin(said, make_user, project):
    client = Client()
    client.force_login(make_user(project, "viewer", is_staff=True))
    for path in (
        "",
        "sessions_app/session/",
        f"sessions_app/session/{said['session']}/change/",
        "sessions_app/event/",
        "runs_app/run/",
        f"runs_app/run/{said['run']}/change/",
        f"runs_app/step/{said['step']}/change/",
        "runs_app/effectrecord/",
        "memory_app/fact/",
        f"memory_app/fact/{said['fact']}/change/",
        "memory_app/factrevision/",
        "access_app/auditentry/",
    ):
        answer = client.get(f"/admin/{path}", follow=True)
        assert SECRET not in answer.content.decode(), path


def test_reviewers_see_memory_and_nothing_else(said, browse, make_user, project):
    """Their whole job, with no other right: the words of facts, but no session."""
    change_settings(project.id, {HIDE_FROM_VIEWERS: False}, actor="test", reason="t")
    client = browse("reviewer")
    fact = client.get(f"/p/{project.slug}/memory/facts/{said['fact']}/")
    html = fact.content.decode()
    assert html.count(SECRET) >= 2  # the fact, and what was said
    assert f"/sessions/{said['session']}" not in html
    for path in pages_of(said):
        status = client.get(f"/p/{project.slug}/{path}").status_code
        expected = 200 if path.startswith("memory/") else 302 if path == "" else 403
        expected = 403 if path == "memory/policy/" else expected
        assert status == expected, path

    staff = Client()
    staff.force_login(make_user(project, "reviewer", is_staff=True))
    shown = staff.get("/admin/").content.decode()
    assert "/admin/memory_app/fact/" in shown
    for app in ("sessions_app", "runs_app", "access_app/apikey", "access_app/audit"):
        assert f"/admin/{app}" not in shown, app
    for path in ("sessions_app/session", "sessions_app/event", "runs_app/run"):
        assert staff.get(f"/admin/{path}/").status_code == 403
    step = staff.get(f"/admin/runs_app/step/{said['step']}/change/", follow=True)
    assert SECRET not in step.content.decode()


def test_support_staff_do_their_whole_job(said, api, browse, project):
    """Find, read, correct, approve, reject, forget one and all, export."""
    change_settings(project.id, {HIDE_FROM_VIEWERS: False}, actor="test", reason="t")
    client = browse("reviewer")
    base = f"/p/{project.slug}/memory/"

    def fact():
        return api.get(f"/api/v1/memory/{said['fact']}").json

    def post(path, **form):
        answer = client.post(base + path, {"reason": "she wrote", **form}, follow=True)
        assert answer.status_code == 200
        return answer.content.decode()

    assert "u-1" in client.get(f"{base}?q=u-").content.decode()
    assert SECRET in client.get(f"{base}subject/?subject=u-1").content.decode()
    one = f"facts/{said['fact']}/"
    post(f"{one}correct/", fact="Plays the drums", version="1")
    assert fact()["fact"] == "Plays the drums"
    post(f"{one}decide/", decision="reject", version=str(fact()["version"]))
    assert fact()["status"] == "rejected"
    post(f"{one}decide/", decision="approve", version=str(fact()["version"]))
    assert fact()["status"] == "active"
    form = {"subject": "u-1", "format": "json", "reason": "she wrote"}
    assert b"drums" in client.post(f"{base}export/", form).getvalue()
    assert "Receipt of what was forgotten" in post(f"{one}forget/")
    assert api.get(f"/api/v1/memory/{said['fact']}").status_code == 404
    dry = client.get(f"{base}forget/?subject=u-1").content.decode()
    assert "Nothing has been changed" in dry
    assert "Receipt" in post("forget/do/", subject="u-1", typed="u-1")
    log = api.get(f"/api/v1/sessions/{said['session']}/events").json
    assert SECRET not in json.dumps(log)
    actions = {e["action"] for e in api.get("/api/v1/audit").json["items"]}
    assert actions >= {"memory.corrected", "memory.rejected", "memory.approved"}
    assert actions >= {"subject.viewed", "subject.exported", "subject.forgotten"}
