"""The admin: runs are steered through the services, the rest is to look at."""

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from access_app.services import add_member
from agentstate.ids import new_id


def client_of(project, role, *, superuser=False):
    user = User.objects.create_user(
        f"s-{new_id()}", is_staff=True, is_superuser=superuser
    )
    user.user_permissions.set(
        Permission.objects.filter(content_type__app_label="runs_app")
    )
    if role:
        add_member(project.id, user, role)
    client = Client()
    client.force_login(user)
    return client


def act(client, action, run):
    return client.post(
        "/admin/runs_app/run/",
        {"action": action, "_selected_action": [run["id"]], "reason": "stuck"},
        follow=True,
    )


@pytest.mark.parametrize(
    "model", ["run", "step", "rejectedcompletion", "effectrecord", "limit"]
)
def test_every_list_opens(project, runs, model):
    runs.create(["a"])
    admin = client_of(project, None, superuser=True)
    assert admin.get(f"/admin/runs_app/{model}/").status_code == 200


def test_a_run_and_its_steps_are_shown_and_not_changed(project, runs, work):
    run = runs.create([{"tool": "a", "args": {"n": "<b>"}}, "b"])
    work.fail(work.claim_one(), "busy")
    admin = client_of(project, "operator")
    page = admin.get(f"/admin/runs_app/run/{run['id']}/change/")
    assert page.status_code == 200
    assert b"retry" in page.content
    step = admin.get(f"/admin/runs_app/step/{run['steps'][0]['id']}/change/")
    assert b"busy" in step.content and b"<b>" not in step.content
    assert admin.get("/admin/runs_app/step/add/").status_code == 403


def test_an_operator_cancels_and_a_viewer_does_not(project, runs):
    run = runs.create(["a"])
    act(client_of(project, "viewer"), "cancel", run)
    assert runs.get(run)["state"] == "queued"
    act(client_of(project, "operator"), "cancel", run)
    assert runs.get(run)["state"] == "cancelled"
    assert runs.get(run)["reason"] == "stuck"


def test_staff_see_runs_of_their_projects_only(project, other_project, runs):
    run = runs.create(["a"])
    mine = client_of(project, "viewer").get("/admin/runs_app/run/")
    others = client_of(other_project, "owner").get("/admin/runs_app/run/")
    assert run["id"].encode() in mine.content
    assert run["id"].encode() not in others.content
    act(client_of(other_project, "owner"), "cancel", run)
    assert runs.get(run)["state"] == "queued"


def test_what_a_late_worker_reported_is_shown(project, runs, work, clock):
    runs.create(["a"])
    step = work.claim_one()
    clock.advance(seconds=31)
    work.complete(work.claim_one())
    work.complete(step, {"report": "42 pages"})
    admin = client_of(project, "operator")
    listed = admin.get("/admin/runs_app/rejectedcompletion/", {"q": step["step"]})
    assert step["step"].encode() in listed.content
