"""What the admin calls things: in words, with acronyms as they are written."""

import html
import re

import pytest
from django.contrib import admin
from django.db.models import Model

from agentstate.labels import ACRONYMS, label_of
from tests.context_app.handoffs import make_run
from tests.factories import make_session

OURS = [
    model
    for model in admin.site._registry
    if model.__module__.split(".")[0].endswith("_app")
]
WRONG = re.compile(rf"\b({'|'.join(map(str.capitalize, ACRONYMS))})\b")


@pytest.mark.parametrize("model", admin.site._registry, ids=lambda m: m.__name__)
def test_every_kind_and_row_has_a_name(model):
    meta = model._meta
    for name in (meta.verbose_name, meta.verbose_name_plural):
        shown = str(name)[:1].upper() + str(name)[1:]
        assert not WRONG.search(shown), shown
        assert "_" not in shown
    assert model.__str__ is not Model.__str__, "it would be called 'X object (1)'"


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("id", "ID"),
        ("run_id", "run ID"),
        ("sha256", "SHA-256"),
        ("n_in_progress", "in progress"),
        ("max_backoff_s", "max backoff (seconds)"),
        ("per_s", "per second"),
        ("created_at", "created at"),
        ("n", "n"),
    ],
)
def test_fields_are_named_in_words(name, label):
    assert label_of(name, name.replace("_", " ")) == label


def test_a_name_that_was_chosen_stays():
    assert label_of("run_id", "the run") == "the run"


@pytest.fixture
def rows(project, api):
    """A row of most kinds."""
    session = make_session(api)
    session.append("hello")
    session.run = make_run(session)
    claim = {"worker": "w", "run": session.run}
    [step] = api.post("/api/v1/steps/claim", claim).json["steps"]
    held = {"step": step["step"], "lease_token": step["lease_token"]}
    begin = {"step": step["step"], "request": {"to": "a"}}
    assert api.post("/api/v1/effects/k-1/begin", begin).status_code == 200
    late = {"items": [held | {"lease_token": 1, "result": 1}]}
    api.post("/api/v1/steps/complete", late)
    api.put("/api/v1/limits/mail", {"max_concurrent": 3})
    api.post(f"{session.url}/artifacts", data=b"a", params={"name": "a.txt"})
    fact = {"subject": "ann", "fact": "Likes tea", "kind": "preference"}
    fact_id = api.post("/api/v1/memory", fact).json["id"]
    api.post(f"/api/v1/memory/{fact_id}/forget", {"reason": "asked to"})
    api.post("/api/v1/memory", fact | {"fact": "Likes coffee"})
    api.post(f"{session.url}/close", {})
    return project


def test_every_page_names_things_in_words(rows, browse):
    person = browse("owner")
    account = person.get(f"/p/{rows.slug}/").wsgi_request.user
    account.is_staff = account.is_superuser = True
    account.save()
    opened = 0
    for model in OURS:
        listed = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        row = model.objects.order_by("-pk").first()
        paths = [listed, *([f"{listed}{row.pk}/change/"] if row else [])]
        opened += len(paths)
        for path in paths:
            answer = person.get(path)
            assert answer.status_code == 200, path
            text = html.unescape(answer.content.decode())
            assert " object (" not in text, path
            for heading in headings(text):
                assert not WRONG.search(heading), (path, heading)
    assert opened > 25


def headings(text):
    """Heads of columns, labels of fields, and titles."""
    tags = "(?:th|label|h1|h2)"
    found = re.findall(rf"<{tags}\b[^>]*>(.*?)</{tags}>", text, re.S)
    return [" ".join(re.sub(r"<[^>]+>", " ", each).split()) for each in found]
