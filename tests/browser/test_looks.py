"""Every page, for everybody: contrast, names and roles by axe, narrow screens."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth.models import User
from django.test import Client

from agentstate.ids import new_id
from tests.artifacts.calls import upload
from tests.factories import SessionApi
from tests.people import append, make_session


def violations_in(page, scheme="light"):
    options = {"resultTypes": ["violations"]}
    if scheme == "dark":  # the same page in other colours
        options["runOnly"] = ["color-contrast"]
    return Axe().run(page, options=options).response["violations"]


@pytest.fixture
def keeper(browse):
    return browse("owner")


@pytest.fixture
def pages(api, project, keeper):
    """Something to see on every page, and the paths of all of them."""
    session = make_session(api, title="A session", subject="u-1", state={"a": [1, 2]})
    append(api, session, 3)
    long = "report " * 20
    stored = upload(SessionApi(api, session), b"a text " * 200, long)
    artifact = stored.json["id"]
    plan = [{"tool": "look", "requires_approval": True}, {"tool": "x" * 60}]
    run = api.post("/api/v1/runs", {"session": session, "steps": plan}).json["id"]
    source = {"session": session, "seqs": [1]}
    fact = api.post(
        "/api/v1/memory",
        {"subject": "u-1", "fact": "Likes " + "tea" * 100, "source": source},
    ).json["id"]
    body = {"agent": "billing", "task": "look"}
    assert api.post(f"/api/v1/runs/{run}/handoffs", body).status_code == 201
    for page in ("runs", "sessions"):
        for name, shared in (("A view " + "of it " * 10, ""), ("Ours", "on")):
            form = {"page": page, "name": name, "query": "agent=support"}
            keeper.post(f"/p/{project.slug}/views/", form | {"shared": shared})
    return [
        "",
        "runs/",
        f"runs/{run}/",
        "inbox/",
        "workers/",
        "sessions/",
        f"sessions/{session}/",
        f"sessions/{session}/events/1/",
        "artifacts/",
        "artifacts/?name=nothing",
        f"artifacts/{artifact}/",
        "search/?q=hello",
        "runs/?state=queued&state=waiting",
        "sessions/?agent=support",
        "memory/",
        "memory/?view=facts",
        "memory/policy/",
        "memory/subject/?subject=u-1",
        f"memory/facts/{fact}/",
        "memory/forget/?subject=u-1",
        "audit/",
        "settings/",
        "settings/storage/",
        "no-such-page/",
        "/",
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(pages, open_page, project, keeper, scheme):
    page = open_page("", color_scheme=scheme, client=keeper)
    found = []
    for path in pages:
        page.goto(path if path == "/" else f"/p/{project.slug}/{path}")
        page.evaluate(
            "document.querySelectorAll('details').forEach(e => { e.open = true })"
        )
        for violation in violations_in(page, scheme):
            if violation["impact"] in ("serious", "critical"):
                nodes = [node["html"][:150] for node in violation["nodes"][:3]]
                found.append((path, violation["id"], nodes))
    page.context.clear_cookies()
    page.goto("/sign-in/")
    assert [v["id"] for v in violations_in(page)] == []
    assert found == []
    assert page.faults == []


@pytest.fixture
def superuser():
    account = User.objects.create_superuser(f"s-{new_id()}")
    client = Client()
    client.force_login(account)
    return client


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_in_the_admin(pages, open_page, superuser, scheme):
    """Every list, and the first row and the form of each."""
    page = open_page("", color_scheme=scheme, client=superuser)
    page.goto("/admin/")
    lists = [
        path
        for path in links(page, "a[href^='/admin/']")
        if path.count("/") == 4 and "logout" not in path
    ]
    assert len(lists) > 10
    found = []
    for path in lists:
        page.goto(path)
        rows = [href for href in links(page, "#result_list a") if "/change/" in href]
        forms = links(page, f"a[href='{path}add/']")
        for each in (path, *rows[:1], *forms[:1]):
            page.goto(each)
            for violation in violations_in(page, scheme):
                if violation["impact"] in ("serious", "critical"):
                    nodes = [node["html"][:150] for node in violation["nodes"][:3]]
                    found.append((each, violation["id"], nodes))
    assert found == []


def links(page, selector):
    hrefs = page.eval_on_selector_all(
        selector, "found => found.map(e => e.getAttribute('href'))"
    )
    return list(dict.fromkeys(href for href in hrefs if href and "?" not in href))


def test_nothing_is_wider_than_a_phone(pages, open_page, project, keeper):
    page = open_page("", viewport={"width": 360, "height": 740}, client=keeper)
    wide = []
    for path in pages:
        page.goto(path if path == "/" else f"/p/{project.slug}/{path}")
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > 360:
            wide.append((path, width))
    assert wide == []
