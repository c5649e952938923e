"""What agents write does no harm on any page, and roles hold in the browser."""

from tests.artifacts.calls import upload
from tests.browser.conftest import PATIENCE_MS, wait_live
from tests.factories import SessionApi
from tests.people import append, make_session

HOSTILE = [
    "<script>window.harmed = 1</script>",
    "<img src=x onerror='window.harmed = 1'>",
    "'\"><svg onload=window.harmed=1>",
    "{{ 7|add:7 }}{% debug %}",
    "\u202e evil \u2066 text \u2069",
    "javascript:window.harmed=1",
    "</textarea></script><a href=javascript:window.harmed=1>x</a>",
    "long" * 2000,
]


def plant(api, text):
    """The text wherever an agent can write one; returns what its pages are named by."""
    short = text[:190]
    session = make_session(
        api, title=short, agent=short, subject=short, labels={"l": short[:60]}
    )
    append(api, session, 1, content=text, extra={text[:50]: text})
    steps = [{"tool": short, "args": text}]
    body = {"session": session, "key": short, "steps": steps}
    run = api.post("/api/v1/runs", body).json["id"]
    api.post("/api/v1/steps/claim", {"worker": short, "run": run, "lease_s": 60})
    body = {"subject": short, "fact": text[:1000]}
    fact = api.post("/api/v1/memory", body).json["id"]
    return f"sessions/{session}/", f"runs/{run}/", f"memory/facts/{fact}/"


def test_hostile_text_shows_as_text(api, open_page, project):
    planted = [path for text in HOSTILE for path in plant(api, text)]
    lists = ["", "sessions/", "runs/", "workers/", "memory/", "memory/?view=facts"]
    page = open_page("search/?type=message.*")
    for path in (*lists, *planted):
        page.goto(f"/p/{project.slug}/{path}")
        assert page.evaluate("window.harmed") is None, path
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280, path
    assert page.faults == []


def test_hostile_text_that_comes_by_the_socket_shows_as_text(api, open_page):
    session = make_session(api)
    page = open_page(f"sessions/{session}/")
    wait_live(page)
    for seq, text in enumerate(HOSTILE, 1):
        append(api, session, 1, content=text)
        page.wait_for_selector(f"#e{seq}")
        assert text[:30].strip() in page.text_content(f"#e{seq} .event__text")
        page.click(f"#e{seq} .event__more summary")
        page.wait_for_selector(f"#e{seq} .event__body .json")
    assert page.evaluate("window.harmed") is None
    assert page.faults == []


def test_ar_06_a_file_of_an_agent_does_not_run(api, open_page):
    session = SessionApi(api, make_session(api))
    harm = "<script>opener.harmed = 1; window.harmed = 1; alert(1)</script>"
    for name, kind in (("page.html", "text/html"), ("x.svg", "image/svg+xml")):
        artifact = upload(session, harm.encode(), name, media_type=kind).json
        page = open_page(f"artifacts/{artifact['id']}/")
        with page.expect_download() as waiting:
            page.click("text=Download")
        assert waiting.value.suggested_filename == name
        link = api.get(f"/api/v1/artifacts/{artifact['id']}/link").json["url"]
        path = link.removeprefix("http://testserver")
        with page.expect_download() as waiting:
            page.evaluate("path => { location.href = path }", path)
        assert waiting.value.suggested_filename == name
        assert page.evaluate("window.harmed") is None
        assert page.faults == []


def test_a_viewer_sees_and_cannot_act(api, open_page):
    made = api.post("/api/v1/runs", {"session_key": "s", "steps": [{"tool": "x"}]}).json
    page = open_page(f"runs/{made['id']}/", role="viewer")
    assert page.query_selector("form[method=post]:not([action*=sign-out])") is None
    answer = page.request.post(
        f"{page.url}steer/",
        form={"action": "cancel", "reason": "x"},
        headers={"X-CSRFToken": token_of(page), "Referer": page.url},
    )
    assert answer.status == 403
    assert api.get(f"/api/v1/runs/{made['id']}").json["state"] == "queued"


def token_of(page):
    import json

    return json.loads(page.get_attribute("body", "hx-headers"))["X-CSRFToken"]


def test_support_staff_correct_and_forget(api, open_page):
    body = {"subject": "u-7", "fact": "Lives in Lisbon", "kind": "profile"}
    fact = api.post("/api/v1/memory", body).json["id"]
    page = open_page("memory/", role="reviewer")
    assert page.query_selector("nav.side >> text=Sessions") is None
    page.click("text=u-7")
    page.click(f"#fact-{fact} >> text=Correct")
    page.fill(f"#c-{fact}", "Lives in Porto")
    page.fill(f"#cr-{fact}", "she wrote in")
    page.click("text=Correct it")
    page.wait_for_selector(".note--success")
    now = api.get(f"/api/v1/memory/{fact}").json
    assert (now["fact"], now["version"]) == ("Lives in Porto", 2)
    page.click("text=Forget all of it")
    page.fill("#typed", "u-7")
    page.fill("#reason", "she asked for it")
    page.click("text=Forget it for good")
    page.wait_for_selector("text=Receipt of what was forgotten")
    assert api.get(f"/api/v1/memory/{fact}").status_code == 404
    assert api.get("/api/v1/memory", params={"subject": "u-7"}).json["items"] == []
    assert page.faults == []


def test_signing_in_and_out(server, chromium, make_user, project):
    from access_app.services import add_member

    user = make_user()
    user.set_password("correct horse")
    user.save()
    add_member(project.id, user, "owner")
    page = chromium.new_page(base_url=server.base_url)
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"/p/{project.slug}/runs/")

    def sign_in(password):
        page.fill("#username", user.username)
        page.fill("#password", password)
        page.click("main button")

    sign_in("wrong")
    page.wait_for_selector(".note--error")
    sign_in("correct horse")
    page.wait_for_url(f"**/p/{project.slug}/runs/")
    page.click(".menu--right summary")
    page.click("text=Sign out")
    page.wait_for_url("**/sign-in/")
    page.close()
