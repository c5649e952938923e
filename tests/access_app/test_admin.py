"""The admin: what staff see of access, and what they may change."""

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from access_app.models import ApiKey, AuditEntry, Member, Project
from access_app.services import add_member, create_key, record_audit
from agentstate.ids import new_id


def staff(*, superuser=False):
    user = User.objects.create_user(
        f"s-{new_id()}", is_staff=True, is_superuser=superuser
    )
    if not superuser:
        user.user_permissions.set(
            Permission.objects.filter(content_type__app_label="access_app")
        )
    return user


def client_of(user):
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def admin():
    return client_of(staff(superuser=True))


@pytest.fixture
def member(project):
    """Staff who may do everything to access, and are a mere viewer of `project`."""
    user = staff()
    add_member(project.id, user, "viewer")
    return client_of(user)


@pytest.fixture
def owner(project):
    user = staff()
    add_member(project.id, user, "owner")
    return client_of(user)


@pytest.mark.parametrize("model", ["project", "member", "apikey", "auditentry"])
def test_every_list_opens(admin, model):
    assert admin.get(f"/admin/access_app/{model}/").status_code == 200


@pytest.mark.parametrize("model", ["member", "apikey", "auditentry"])
def test_staff_see_rows_of_their_projects_only(owner, project, other_project, model):
    shown = {}
    for each in (project, other_project):
        user = User.objects.create_user(f"name-{each.id}")
        add_member(each.id, user, "viewer")
        create_key(each, scopes=["all"], name=f"name-{each.id}")
        record_audit(each.id, "system", "thing.done", f"name-{each.id}")
        shown[each] = f"name-{each.id}"
    page = owner.get(f"/admin/access_app/{model}/").content.decode()
    assert shown[project] in page
    assert shown[other_project] not in page


def test_a_viewer_sees_no_audit_log(member, project):
    record_audit(project.id, "system", "thing.done", f"name-{project.id}")
    page = member.get("/admin/access_app/auditentry/").content.decode()
    assert f"name-{project.id}" not in page


def test_a_row_of_another_project_cannot_be_opened(member, other_project):
    key, _ = create_key(other_project, scopes=["all"])
    answer = member.get(f"/admin/access_app/apikey/{key.id}/change/")
    assert answer.status_code == 302  # to the index: "doesn't exist"


def test_keys_are_not_made_here_and_show_no_hash(admin, project):
    key, _ = create_key(project, scopes=["all"])
    page = admin.get(f"/admin/access_app/apikey/{key.id}/change/")
    assert "secret_hash" not in page.content.decode()
    assert bytes(key.secret_hash).hex() not in page.content.decode()
    assert admin.get("/admin/access_app/apikey/add/").status_code == 403


def revoke(client, key):
    return client.post(
        "/admin/access_app/apikey/",
        {"action": "revoke", "_selected_action": [str(key.id)], "reason": "lost"},
    )


def test_an_owner_revokes_a_key(owner, project):
    key, _ = create_key(project, scopes=["all"])
    revoke(owner, key)
    key.refresh_from_db()
    assert key.is_revoked
    entry = AuditEntry.objects.get(object=f"key:{key.id}", action="key.revoked")
    assert entry.actor.startswith("user:s-")


def test_a_viewer_revokes_nothing(member, project):
    key, _ = create_key(project, scopes=["all"])
    revoke(member, key)
    key.refresh_from_db()
    assert not key.is_revoked


def test_a_viewer_cannot_make_themselves_owner(member, project):
    mine = Member.objects.get(project=project, role="viewer")
    path = f"/admin/access_app/member/{mine.pk}/change/"
    assert member.post(path, {"role": "owner"}).status_code == 403
    added = member.post(
        "/admin/access_app/member/add/",
        {"project": project.pk, "user": staff().pk, "role": "owner"},
    )
    assert "errors" in added.context
    assert Member.objects.filter(project=project).count() == 1


def test_a_role_is_changed_through_the_service(owner, project):
    user = User.objects.create_user(f"u-{new_id()}")
    made = add_member(project.id, user, "viewer")
    path = f"/admin/access_app/member/{made.pk}/change/"
    refused = owner.post(path, {"role": "operator"})
    assert "reason" in refused.context["adminform"].form.errors
    made.refresh_from_db()
    assert made.role == "viewer"
    owner.post(path, {"role": "operator", "reason": "helps out"})
    made.refresh_from_db()
    assert made.role == "operator"
    entries = AuditEntry.objects.filter(object=f"member:{made.pk}")
    assert entries.count() == 2
    assert entries.get(action="member.role_set").reason == "helps out"


def remove(client, member, **body):
    return client.post(
        "/admin/access_app/member/",
        {"action": "remove", "_selected_action": [str(member.pk)], **body},
        follow=True,
    ).content.decode()


def test_a_member_is_removed_with_a_reason(owner, project):
    made = add_member(project.id, User.objects.create_user(f"u-{new_id()}"), "viewer")
    assert "Say why" in remove(owner, made)
    assert Member.objects.filter(pk=made.pk).exists()
    remove(owner, made, reason="left us")
    assert not Member.objects.filter(pk=made.pk).exists()
    entry = AuditEntry.objects.get(object=f"member:{made.pk}", action="member.removed")
    assert (entry.reason, entry.actor[:7]) == ("left us", "user:s-")
    last = Member.objects.get(project=project)
    assert "at least one owner" in remove(owner, last, reason="me too")
    assert Member.objects.filter(pk=last.pk).exists()


def test_a_viewer_removes_nobody(member, project):
    made = add_member(project.id, User.objects.create_user(f"u-{new_id()}"), "viewer")
    remove(member, made, reason="because")
    assert Member.objects.filter(pk=made.pk).exists()


def test_what_a_service_refuses_is_said(owner, project):
    mine = Member.objects.get(project=project, role="owner")
    path = f"/admin/access_app/member/{mine.pk}/change/"
    answer = owner.post(path, {"role": "viewer", "reason": "to see what happens"})
    assert answer.status_code == 200
    shown = answer.content.decode()
    assert "at least one owner" in shown
    assert 'value="to see what happens"' in shown
    assert '<option value="viewer" selected' in shown
    mine.refresh_from_db()
    assert mine.role == "owner"


def test_a_project_is_made_through_the_service(admin):
    name, path = f"Made {new_id()}", "/admin/access_app/project/add/"
    assert admin.post(path, {"name": name}).status_code == 200  # without a reason
    assert not Project.objects.filter(name=name).exists()
    assert admin.post(path, {"name": name, "reason": "new"}).status_code == 302
    made = Project.objects.get(name=name)
    entry = AuditEntry.objects.in_project(made.id).get()
    assert (entry.action, entry.reason) == ("project.created", "new")
    again = admin.post(path, {"name": name, "reason": "once more"})
    assert again.status_code == 200
    shown = again.content.decode()
    assert "already exists" in shown and 'value="once more"' in shown
    change = f"/admin/access_app/project/{made.pk}/change/"
    admin.post(change, {"name": f"{name}!", "reason": "it is great"})
    made.refresh_from_db()
    assert made.name == f"{name}!"
    entry = AuditEntry.objects.in_project(made.id).get(action="project.updated")
    assert entry.reason == "it is great"


def test_the_audit_log_is_for_reading(admin, project):
    entry = record_audit(project.id, "system", "thing.done", "thing:1")
    path = f"/admin/access_app/auditentry/{entry.id}"
    assert admin.get(f"{path}/change/").status_code == 200
    assert admin.post(f"{path}/change/", {"reason": "x"}).status_code == 403
    assert admin.get(f"{path}/delete/").status_code == 403
    assert admin.get("/admin/access_app/auditentry/add/").status_code == 403


def test_keys_stay_when_the_admin_wants_them_gone(admin, project):
    key, _ = create_key(project, scopes=["all"])
    path = f"/admin/access_app/apikey/{key.id}/delete/"
    assert admin.post(path, {"post": "yes"}).status_code == 403
    assert ApiKey.objects.filter(pk=key.pk).exists()
