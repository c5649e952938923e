"""A form that is refused keeps what was typed, on every page that has one."""

import html
import json
import re

import pytest
from django.urls import get_resolver
from django.urls.resolvers import URLPattern

from agentstate.ids import new_id

SAMPLES = {"uuid": "0199b2a0-9d01-7c66-8f5a-3b4c5d6e7f80", "int": "1"}


def addresses(patterns=None, prefix="/"):
    """Every address inside a project, and the names that its parts have."""
    for each in get_resolver().url_patterns if patterns is None else patterns:
        path = prefix + str(each.pattern)
        if not isinstance(each, URLPattern):
            yield from addresses(each.url_patterns, path)
        elif path.startswith("/p/<slug:slug>/"):
            yield re.sub(r"<(\w+):(?!slug)\w+>", lambda m: SAMPLES.get(m[1], "x"), path)


def typed_on(page):
    found = re.search(
        r'<script id="refused-form"[^>]*>(.*?)</script>', page.content.decode()
    )
    return json.loads(html.unescape(found[1])) if found else None


def test_every_form_keeps_what_was_typed(browse, project):
    owner = browse("owner")
    settings_page = f"/p/{project.slug}/settings/"
    forms = 0
    for address in addresses():
        path = address.replace("<slug:slug>", project.slug)
        if owner.get(path).status_code != 405:
            continue
        forms += 1
        typed = f"typed-{new_id()}</script>"
        body = {"reason": "", "anything": typed, "many": ["a", "b"]}
        answer = owner.post(path, body, headers={"Referer": settings_page})
        assert answer.status_code in (302, 404), (path, answer.status_code)
        if answer.status_code == 404:
            continue
        told = typed_on(owner.get(settings_page))
        assert told is not None, path
        assert told["action"] == path
        assert told["values"]["anything"] == [typed]
        assert told["values"]["many"] == ["a", "b"]
        assert "csrfmiddlewaretoken" not in told["values"]
        assert typed_on(owner.get(settings_page)) is None, "kept for one page only"
    assert forms > 15


def test_what_is_too_much_is_not_kept(browse, project):
    owner = browse("owner")
    body = {"username": "nobody", "reason": "x" * 200_000}
    owner.post(f"/p/{project.slug}/settings/members/", body)
    assert typed_on(owner.get(f"/p/{project.slug}/settings/")) is None


@pytest.mark.parametrize("headers", [{"HX-Request": "true"}])
def test_a_fragment_takes_nothing_from_the_page(browse, project, headers):
    owner = browse("owner")
    storage = f"/p/{project.slug}/settings/storage/"
    owner.post(f"{storage}limit/", {"limit": "much", "reason": "r"})
    assert typed_on(owner.get(storage, headers=headers)) is None
    assert typed_on(owner.get(storage))["values"]["limit"] == ["much"]
