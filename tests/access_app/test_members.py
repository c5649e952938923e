"""/api/v1/members."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.contrib.auth.models import User
from django.db import connection

from access_app.models import AuditEntry, Member
from agentstate.ids import new_id
from tests.queries import CallQueries

URL = "/api/v1/members"


@pytest.fixture
def user():
    return make_user()


def make_user():
    return User.objects.create_user(f"u-{new_id()}")


def add(api, role="owner", user=None):
    user = user or make_user()
    answer = api.post(URL, {"username": user.username, "role": role})
    assert answer.status_code == 201, answer
    return answer.json


def test_a_member_is_added_listed_and_audited(api, project, user):
    made = add(api, "reviewer", user)
    assert made["username"] == user.username
    assert made["role"] == "reviewer"
    assert api.get(URL).json == {"items": [made], "next": None}
    assert api.get(f"{URL}/{made['id']}").json == made
    entry = AuditEntry.objects.in_project(project.id).get(action="member.added")
    assert entry.after == {"user": user.username, "role": "reviewer"}


def test_a_second_membership_is_409(api, user):
    add(api, "viewer", user)
    answer = api.post(URL, {"username": user.username, "role": "owner"})
    assert (answer.status_code, answer.json["code"]) == (409, "already_member")
    assert [m["role"] for m in api.get(URL).json["items"]] == ["viewer"]


@pytest.mark.parametrize(
    ("body", "path", "code"),
    [
        ({"username": "nobody-of-this-name", "role": "viewer"}, "username", None),
        ({"username": "x", "role": "king"}, "role", "invalid_choice"),
        ({"role": "viewer"}, "username", "required"),
    ],
)
def test_a_wrong_body_is_422_with_its_path(api, body, path, code):
    answer = api.post(URL, body)
    assert answer.status_code == 422
    assert answer.json["errors"][0]["path"] == path
    assert code in (None, answer.json["errors"][0]["code"])


def test_a_role_is_changed_with_a_reason(api, project):
    add(api)
    made = add(api, "viewer")
    answer = api.patch(f"{URL}/{made['id']}", {"role": "operator", "reason": "on call"})
    assert answer.json["role"] == "operator"
    entry = AuditEntry.objects.in_project(project.id).get(action="member.role_set")
    assert (entry.before["role"], entry.after["role"]) == ("viewer", "operator")
    assert entry.reason == "on call"


def test_the_last_owner_stays(api):
    owner = add(api, "owner")
    demoted = api.patch(f"{URL}/{owner['id']}", {"role": "viewer"})
    removed = api.delete(f"{URL}/{owner['id']}")
    assert [demoted.json["code"], removed.json["code"]] == ["last_owner"] * 2
    add(api, "owner")
    assert api.delete(f"{URL}/{owner['id']}").status_code == 204
    assert api.get(f"{URL}/{owner['id']}").status_code == 404


def test_two_owners_who_leave_at_once_take_turns(api, project):
    owners = [add(api, "owner")["id"] for _ in range(2)]
    together = threading.Barrier(2)

    def leave(member_id):
        together.wait()
        try:
            return api.delete(f"{URL}/{member_id}").status_code
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(leave, owners)) == [204, 409]
    assert Member.objects.filter(project=project, role="owner").count() == 1


def test_a_member_of_another_project_is_not_there(api, other_api):
    add(api)
    theirs = add(api, "viewer")
    path = f"{URL}/{theirs['id']}"
    answers = [
        other_api.get(path),
        other_api.patch(path, {"role": "owner"}),
        other_api.delete(path),
    ]
    assert [a.status_code for a in answers] == [404, 404, 404]
    assert Member.objects.get(pk=theirs["id"]).role == "viewer"


def test_an_id_out_of_range_is_404(api):
    assert api.get(f"{URL}/{10**30}").status_code == 404


def test_the_list_costs_one_query_whatever_its_length(api):
    for _ in range(3):
        add(api)
    with CallQueries() as queries:
        assert len(api.get(URL).json["items"]) == 3
    assert len(queries) == 1
