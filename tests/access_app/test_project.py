"""GET and PATCH /api/v1/project."""

import pytest

from access_app.models import AuditEntry, Project
from tests.fixtures import Api

URL = "/api/v1/project"


def test_it_shows_the_keys_own_project(api, project):
    answer = api.get(URL)
    assert answer.status_code == 200
    assert answer.json["id"] == str(project.id)
    assert answer.json["slug"] == project.slug


def test_it_changes_name_and_settings_and_says_why(api, project):
    changed = {"name": f"{project.name} renamed", "settings": {"days": 30}}
    answer = api.patch(URL, {**changed, "reason": "merged teams"})
    assert answer.status_code == 200
    assert {k: answer.json[k] for k in changed} == changed
    entry = AuditEntry.objects.in_project(project.id).get(action="project.updated")
    assert entry.before == {"name": project.name, "settings": {}}
    assert entry.after == changed
    assert entry.reason == "merged teams"


def test_settings_come_back_as_they_were_sent(api):
    settings = {"a\0b": 10**40, "c": ["\0", 0.1, None, True]}
    api.patch(URL, {"settings": settings})
    assert api.get(URL).content.count(b"\\u0000") == 2
    assert api.get(URL).json["settings"]["a\0b"] == 10**40


def test_a_taken_name_is_409_and_changes_nothing(api, project, other_project):
    answer = api.patch(URL, {"name": other_project.name, "settings": {"a": 1}})
    assert (answer.status_code, answer.json["code"]) == (409, "name_taken")
    assert Project.objects.get(pk=project.id).settings == {}


def test_an_empty_change_leaves_no_audit_entry(api, project):
    assert api.patch(URL, {}).status_code == 200
    entries = AuditEntry.objects.in_project(project.id)
    assert not entries.filter(action="project.updated").exists()


@pytest.mark.parametrize("settings", [None, [], "x", {"a": "x" * 70_000}])
def test_settings_are_an_object_of_bounded_size(api, settings):
    answer = api.patch(URL, {"settings": settings})
    assert answer.status_code == 422
    assert answer.json["errors"][0]["path"] == "settings"


def test_it_needs_the_admin_scope(make_key):
    assert Api(make_key(["sessions:write"])).get(URL).status_code == 403
