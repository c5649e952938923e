"""Pages by one plain GET: who may see them, what they hold, and what they cost."""

import re
import time
from datetime import UTC, datetime

import pytest
from django.db import connection
from django.test import Client

from tests.people import append, make_session

PAGES = {
    "owner": ("", "runs/", "inbox/", "sessions/", "memory/", "audit/", "settings/"),
    "operator": ("", "runs/", "inbox/", "sessions/", "memory/", "audit/", "artifacts/"),
    "reviewer": ("memory/",),
    "viewer": (
        "",
        "runs/",
        "inbox/",
        "workers/",
        "sessions/",
        "artifacts/",
        "search/",
        "memory/",
    ),
}
ALL = sorted({path for paths in PAGES.values() for path in paths} - {""})


@pytest.mark.parametrize("role", PAGES)
def test_a_role_sees_its_pages_and_no_others(browse, project, role):
    client = browse(role)
    for path in ALL:
        answer = client.get(f"/p/{project.slug}/{path}")
        expected = 200 if path in PAGES[role] else 403
        if role == "operator" and path in ("workers/", "search/"):
            expected = 200
        if role == "owner":
            expected = 200
        assert answer.status_code == expected, path


def test_another_projects_pages_are_not_there(api, browse, other_project):
    session = make_session(api)
    run = api.post("/api/v1/runs", {"session": session, "steps": [{"tool": "x"}]}).json[
        "id"
    ]
    fact = api.post("/api/v1/memory", {"subject": "u", "fact": "f"}).json["id"]
    stranger = browse("owner", project=other_project)
    mine = Client()
    for path in (
        f"sessions/{session}/",
        f"sessions/{session}/events/1/",
        f"sessions/{session}/past/",
        f"sessions/{session}/context/",
        f"runs/{run}/",
        f"memory/facts/{fact}/",
    ):
        assert stranger.get(f"/p/{other_project.slug}/{path}").status_code == 404
        answer = mine.get(f"/p/{other_project.slug}/{path}")
        assert answer.status_code == 302 and "/sign-in/" in answer["Location"]


def test_another_projects_slug_is_not_there(browse, project, other_project):
    stranger = browse("owner", project=other_project)
    assert stranger.get(f"/p/{project.slug}/").status_code == 404
    assert stranger.post(f"/p/{project.slug}/settings/keys/").status_code == 404


def test_what_another_project_holds_cannot_be_acted_on(api, browse, other_project):
    run = api.post("/api/v1/runs", {"session_key": "s", "steps": [{"tool": "x"}]}).json[
        "id"
    ]
    stranger = browse("owner", project=other_project)
    form = {"action": "cancel", "reason": "x"}
    stranger.post(f"/p/{other_project.slug}/runs/{run}/steer/", form)
    assert api.get(f"/api/v1/runs/{run}").json["state"] == "queued"


@pytest.mark.parametrize("reason", ["", "   "])
def test_every_action_asks_for_a_reason(api, browse, project, reason):
    session = make_session(api)
    url = f"/p/{project.slug}/sessions/{session}/close/"
    browse().post(url, {"reason": reason})
    assert api.get(f"/api/v1/sessions/{session}").json["status"] == "open"


def test_pages_forbid_inline_scripts(browse, project):
    answer = browse().get(f"/p/{project.slug}/sessions/")
    policy = answer["Content-Security-Policy"]
    assert "script-src 'self';" in policy and "unsafe" not in policy
    assert not re.search(
        rb"<script(?![^>]*src=)|<style| style=| on\w+=", answer.content
    )


def test_a_viewer_is_shown_no_payload_if_the_project_says_so(api, browse, project):
    from access_app.roles import HIDE_FROM_VIEWERS
    from access_app.services import change_settings

    session = make_session(api, state={"word": "hushhush"})
    append(api, session, 1, content="hushhush")
    change_settings(project.id, {HIDE_FROM_VIEWERS: True}, actor="test", reason="t")
    client = browse("viewer")
    for path in (
        "",
        "sessions/",
        f"sessions/{session}/",
        f"sessions/{session}/events/",
    ):
        answer = client.get(f"/p/{project.slug}/{path}")
        assert answer.status_code == 200
        assert b"hushhush" not in answer.content
    for path in (
        "events/1/",
        "past/",
        "state.json",
        "events/1/payload.json",
        "context/",
    ):
        answer = client.get(f"/p/{project.slug}/sessions/{session}/{path}")
        assert answer.status_code == 403, path


# --- DB: pages of large and odd logs


def test_db_01_a_long_log_is_shown_in_pages(api, browse, project):
    session = make_session(api)
    for _ in range(5):
        append(api, session, 1000, content="x" * 4000)
    client = browse()
    url = f"/p/{project.slug}/sessions/{session}/"
    for query in ("", "?seq=4999", "?before=4900", "?after=10", "?q=xx"):
        started = time.thread_time()
        answer = client.get(url + query)
        assert time.thread_time() - started < 2
        assert answer.status_code == 200 and len(answer.content) < 1_000_000
    opened = client.get(f"{url}?seq=4999").content.decode()
    assert 'id="e4999"' in opened and 'data-marked="4999"' in opened
    body = client.get(f"{url}events/4999/", headers={"HX-Request": "true"})
    assert "x" * 4000 in body.content.decode()


def test_db_01_a_huge_payload_is_not_sent_to_the_browser_whole(api, browse, project):
    session = make_session(api)
    append(api, session, 1, content="y" * 3_000_000)
    url = f"/p/{project.slug}/sessions/{session}/events/1/"
    answer = browse().get(url)
    assert answer.status_code == 200 and len(answer.content) < 1_000_000
    assert len(browse().get(f"{url}payload.json").content) > 3_000_000


def test_db_03_the_list_shows_cut_previews(api, browse, project):
    text = "e\u0301\U0001f469\u200d\U0001f4bb" * 150_000  # about 2 MB
    for _ in range(50):
        append(api, make_session(api), 1, content=text)
    client = browse()
    url = f"/p/{project.slug}/sessions/"
    client.get(url)
    started = time.thread_time()
    answer = client.get(url)
    seconds = time.thread_time() - started
    assert answer.status_code == 200 and len(answer.content) < 200_000
    assert seconds < 1
    page = answer.content.decode()  # no half of a surrogate pair in it
    [preview, *_] = re.findall(r'<p class="preview">.*?<bdi>(.*?)…</bdi>', page)
    assert preview.endswith(("\u0301", "\U0001f4bb"))


def test_db_05_odd_records_are_shown_raw(api, browse, project):
    session = make_session(api)
    append(api, session, 1, content="fine")
    odd = [
        ("tool.call", '{"tool_call_id":"z","name":"f","arguments":null}'),
        ("custom.unknown", '{"foo":1}'),
        ("message.assistant", '{"role":"assistant"}'),
        ("message.user", "[1,2]"),
        ("tool.result", '{"tool_call_id":"z","content":null}'),
        ("state.changed", '{"patch":"?"}'),
    ]
    with connection.cursor() as cursor:
        for seq, (name, payload) in enumerate(odd, 2):
            cursor.execute(
                "INSERT INTO agent_events (project_id, session_id, seq, event_id, type,"
                " payload, payload_bytes, actor, created_at, gen, xid) SELECT"
                " project_id, session_id, %s, gen_random_uuid(), %s, %s, length(%s),"
                " actor, created_at, gen, xid FROM agent_events"
                " WHERE session_id = %s AND seq = 1",
                [seq, name, payload, payload, session],
            )
        cursor.execute(
            "UPDATE agent_sessions SET last_seq = 7 WHERE id = %s", [session]
        )
    client = browse()
    url = f"/p/{project.slug}/sessions/{session}/"
    try:
        page = client.get(f"{url}?at=1").content.decode()
        assert re.findall(r'data-seq="(\d)"', page) == list("1234567")
        assert page.count("not of the shape its type promises") == 3
        for seq in range(2, 8):
            assert client.get(f"{url}events/{seq}/").status_code == 200
    finally:
        # What no API can write must not be left to the check of the whole suite.
        forget_session(session)


def forget_session(session):
    """Take out rows that were put in by hand."""
    import psycopg

    from tests.services import admin_url

    name = connection.settings_dict["NAME"]
    with psycopg.connect(admin_url(name), autocommit=True) as raw:
        raw.execute("SET session_replication_role = replica")  # no triggers
        raw.execute("DELETE FROM agent_events WHERE session_id = %s", [session])
        raw.execute("DELETE FROM agent_tool_calls WHERE session_id = %s", [session])
        raw.execute("DELETE FROM agent_sessions WHERE id = %s", [session])


TIMES = (
    "2026-03-28T23:30:00+00:00",
    "2026-03-29T00:30:00+00:00",
    "2026-03-29T01:30:00+00:00",
    "2026-10-25T00:30:00+00:00",
    "2026-10-25T01:30:00+00:00",
)


@pytest.mark.parametrize(
    ("zone", "on_29_march", "on_25_october"),
    [
        ("Europe/Berlin", 3, 2),
        ("Asia/Kolkata", 3, 2),
        ("America/Los_Angeles", 0, 0),
        ("UTC", 2, 2),
    ],
)
def test_db_06_a_day_is_the_readers(
    api, clock, browse, project, zone, on_29_march, on_25_october
):
    session = make_session(api)
    for text in TIMES:
        wanted = datetime.fromisoformat(text) - datetime.now(UTC)
        clock.advance(seconds=wanted.total_seconds() - clock.seconds)
        append(api, session, 1)
    client = browse()
    client.cookies["zone"] = zone
    for day, count in (("2026-03-29", on_29_march), ("2026-10-25", on_25_october)):
        url = f"/p/{project.slug}/search/?day={day}&type=message.user"
        page = client.get(url).content.decode()
        assert page.count("data-created=") == count
        charted = sum(int(n) for n in re.findall(r'data-value="(\d+)"', page))
        assert charted == count
        assert zone in page
        if zone == "Europe/Berlin" and day == "2026-10-25":
            assert "02:00:00 +02:00: 1" in page and "02:00:00 +01:00: 1" in page


# --- Signing in


def test_signing_in_is_limited_by_name(make_user, settings):
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    user = make_user()
    user.set_password("right")
    user.save()
    form = {"username": user.username, "password": "wrong"}
    codes = [Client().post("/sign-in/", form).status_code for _ in range(11)]
    assert codes == [403] * 10 + [429]
    assert Client().post("/sign-in/", form | {"password": "right"}).status_code == 429


def test_op_02_signing_in_fails_closed_without_redis(make_user, settings):
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    from access_app import sign_in

    user = make_user()
    user.set_password("right")
    user.save()
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    sign_in.count_script.cache_clear()
    try:
        form = {"username": user.username, "password": "right"}
        answer = Client().post("/sign-in/", form)
        assert answer.status_code == 503
        assert "sessionid" not in answer.cookies
    finally:
        sign_in.count_script.cache_clear()


def test_next_leads_to_our_own_pages_only(make_user):
    client = Client()
    client.force_login(make_user())
    answer = client.get("/sign-in/?next=https://evil.example.test/")
    assert answer["Location"] == "/"
    assert client.get("/sign-in/?next=/p/x/")["Location"] == "/p/x/"


def test_the_admins_own_form_is_not_a_second_way_in():
    answer = Client().get("/admin/login/?next=/admin/")
    assert answer["Location"] == "/sign-in/?next=/admin/"


def test_the_admin_tells_a_member_who_is_no_staff_so_and_does_not_turn_round(browse):
    answer = browse("owner").get("/admin/", follow=True)
    assert (answer.status_code, len(answer.redirect_chain)) == (403, 1)
    assert "no staff account" in answer.content.decode()


# --- Settings


def test_a_key_is_shown_once(browse, project):
    client = browse()
    url = f"/p/{project.slug}/settings/"
    form = {"name": "n", "scopes": ["sessions:read"], "reason": "for a test"}
    made = client.post(f"{url}keys/", form)
    [key] = re.findall(r"as_[0-9a-f]{12}_[0-9a-f]{64}", made.content.decode())
    assert made["Cache-Control"] == "no-store"
    assert key not in client.get(url).content.decode()
    from tests.fixtures import Api

    assert Api(key).get("/api/v1/sessions").status_code == 200


@pytest.mark.parametrize(
    "query",
    ["?cursor=x", "?day=x", "?hours=9", "?q=%00", "?label=x", "?status=x", "?seq=x"],
)
@pytest.mark.parametrize("path", ["sessions/", "runs/", "search/", "memory/", "audit/"])
def test_odd_addresses_are_refused_in_words(browse, project, path, query):
    answer = browse().get(f"/p/{project.slug}/{path}{query}")
    assert answer.status_code in (200, 400, 404, 422)


def test_a_next_that_is_no_path_of_ours_is_no_fault(browse):
    client = browse()
    for target in ("not", "-1", "%ff", "a%00b", "%F0%9F%98%80"):
        answer = client.get(f"/sign-in/?next={target}")
        assert answer.status_code == 302, target


@pytest.mark.parametrize(
    "page",
    ["audit/?actor=%00", "audit/?object=a%00b", "sessions/?agent=%00", "search/?q=%00"],
)
def test_u_0000_in_a_query_is_no_fault(browse, project, page):
    answer = browse().get(f"/p/{project.slug}/{page}")
    assert answer.status_code in (200, 400)


@pytest.mark.parametrize("path", ["members", "policies"])
def test_u_0000_in_a_form_is_refused(browse, project, path):
    form = {"username": "a\0b", "role": "viewer", "reason": "a\0b"}
    answer = browse().post(f"/p/{project.slug}/settings/{path}/", form)
    assert answer.status_code in (302, 400)


def test_u_0000_in_a_name_signs_nobody_in():
    form = {"username": "a\0b", "password": "right"}
    assert Client().post("/sign-in/", form).status_code in (400, 403)


def test_an_owner_says_what_is_reviewed_first(api, browse, project):
    client = browse("owner")
    url = f"/p/{project.slug}/memory/policy/"
    assert client.get(url).status_code == 200
    form = {
        "remember-user": "active",
        "remember-agent": "review",
        "promote-user": "review",
        "promote-agent": "off",
        "reason": "careful",
    }
    client.post(f"{url}change/", form | {"promote-agent": "perhaps"})
    assert "memory" not in api.get("/api/v1/project").json["settings"]
    client.post(f"{url}change/", form)
    told = api.get("/api/v1/project").json["settings"]["memory"]
    assert told["remember"]["agent"] == "review" and told["promote"]["agent"] == "off"
    fact = {"subject": "u-1", "fact": "Likes tea", "source": {"kind": "agent"}}
    assert api.post("/api/v1/memory", fact).json["status"] == "proposed"
    browse("reviewer").post(f"{url}change/", form | {"remember-agent": "active"})
    assert api.get("/api/v1/project").json["settings"]["memory"] == told
