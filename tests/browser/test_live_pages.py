"""Pages as people see them move: in a real browser, over real sockets."""

import os
import signal

import pytest

from tests.browser.conftest import wait_live
from tests.cutting_proxy import CuttingProxy
from tests.fixtures import wait_until_settled
from tests.people import append, make_session


@pytest.fixture
def proxy(server):
    made = CuttingProxy(server.base_url)
    yield made
    made.close()


def shown_seqs(page):
    return page.eval_on_selector_all("#log > li", "all => all.map(e => +e.dataset.seq)")


def wait_for_seq(page, seq):
    page.wait_for_selector(f"#log > #e{seq}")


def test_events_appear_without_a_reload(api, open_page):
    session = make_session(api)
    append(api, session, 3)
    page = open_page(f"sessions/{session}/")
    wait_live(page)
    append(api, session, 2, content="<b>new</b>")
    wait_for_seq(page, 5)
    assert shown_seqs(page) == [1, 2, 3, 4, 5]
    assert page.text_content("#e5 .event__text") == "<b>new</b>"
    assert page.text_content("#event-count") == "5"
    assert page.faults == []


def test_ws_01_a_cut_socket_says_so_and_misses_nothing(api, open_page, proxy):
    session = make_session(api)
    page = open_page(f"sessions/{session}/", base=proxy.base_url)
    wait_live(page)
    append(api, session, 20)
    wait_for_seq(page, 20)
    page.evaluate(
        "window.states = []; new MutationObserver(() => states.push("
        "document.getElementById('link-state').textContent)).observe("
        "document.getElementById('link-state'), {childList: true})"
    )
    proxy.cut_all()
    append(api, session, 480)
    wait_for_seq(page, 500)
    assert shown_seqs(page) == list(range(1, 501))
    assert page.evaluate("states")[0].startswith("Disconnected")
    assert page.evaluate("states")[-1] == "Live"


def test_ws_08_pages_wait_a_random_while_before_they_come_back(open_page, proxy):
    page = open_page("", base=proxy.base_url)
    # The page's policy forbids eval, which wait_for_function needs to look again: so
    # each wait is written where a selector finds it.
    page.add_init_script(
        "window.waits = []; const later = setTimeout; window.setTimeout ="
        " (call, ms, ...rest) => { if (call.name === 'connect') {"
        " waits.push(ms); document.body.classList.add(`waited-${waits.length}`); }"
        " return later(call, ms, ...rest); }"
    )
    page.reload()
    for count in range(1, 5):
        wait_live(page)
        proxy.cut_all()
        page.wait_for_selector(f"body.waited-{count}")
    waits = page.evaluate("waits")[:4]
    assert all(250 <= wait <= 500 for wait in waits)
    assert len(set(waits)) > 1


def test_ws_03_a_silent_server_shows_as_disconnected(api, open_page, server_factory):
    """Frozen, it answers nothing and closes nothing: as when the network is gone."""
    server = server_factory(AGENTSTATE_SOCKET_PING_SECONDS="1")
    session = make_session(api)
    page = open_page(f"sessions/{session}/", base=server.base_url)
    wait_live(page)
    os.killpg(server.process.pid, signal.SIGSTOP)
    try:
        page.wait_for_selector('#link-state[data-state="lost"]')
        append(api, session, 3)
    finally:
        os.killpg(server.process.pid, signal.SIGCONT)
    wait_for_seq(page, 3)
    wait_live(page)
    assert shown_seqs(page) == [1, 2, 3]


def test_held_changes_wait_until_they_are_let_go(api, open_page):
    session = make_session(api)
    append(api, session, 1)
    page = open_page(f"sessions/{session}/")
    wait_live(page)
    page.click("#pause")
    other = open_page(f"sessions/{session}/")
    wait_live(other)
    append(api, session, 1)
    wait_for_seq(other, 2)  # told to both in the same moment
    assert shown_seqs(page) == [1]
    page.click("#pause")
    wait_for_seq(page, 2)


def test_the_slider_shows_what_the_api_replays(api, open_page):
    session = make_session(api, state={"step": "a", "big": 10**30, "gone": "\u0000"})
    for version, state in enumerate([{"step": "b"}, {"step": "c", "list": [1.50]}], 1):
        append(api, session, 2)
        body = {"state": state, "expected_version": version}
        api.put(f"/api/v1/sessions/{session}/state", body)
    page = open_page(f"sessions/{session}/")
    for seq in (1, 3, 4, 7):
        page.eval_on_selector(
            "#at",
            "(e, v) => { e.value = v; e.dispatchEvent(new Event('change')); }",
            seq,
        )
        page.wait_for_selector(f'#past [data-at-seq="{seq}"]')
        replay = api.get(f"/api/v1/sessions/{session}/replay", params={"at_seq": seq})
        shown = page.request.get(f"{page.url}state.json?at={seq}")
        from agentstate import codec

        assert codec.loads(shown.body()) == replay.json["state"]
        told = page.text_content("#past h3")
        assert f"version {replay.json['version']}" in told
    page.goto(f"{page.url}?at=1")
    assert str(10**30) in page.text_content("#past .json")


def test_a_slider_that_is_dragged_ends_where_it_was_let_go(api, open_page):
    session = make_session(api)
    append(api, session, 6)
    page, errors = open_page(f"sessions/{session}/"), []
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.eval_on_selector(
        "#at",
        """e => { for (const seq of [5, 4, 3, 2]) {
            e.value = seq; e.dispatchEvent(new Event('change')); } }""",
    )
    page.wait_for_selector('#past [data-at-seq="2"]')
    assert errors == [], "and no request was given up on the way"


def test_names_of_agents_stay_whole_on_a_phone(api, open_page):
    body = {"session_key": "w", "agent": "warehouse", "steps": [{"tool": "x"}]}
    api.post("/api/v1/runs", body)
    make_session(api, key="v", agent="warehouse")
    for path in ("runs/", "sessions/"):
        page = open_page(path, viewport={"width": 375, "height": 740})
        name = page.locator("td bdi", has_text="warehouse").first
        assert name.evaluate("e => e.getClientRects().length") == 1, path


def test_a_run_moves_and_approving_releases_its_step(api, open_page):
    made = api.post(
        "/api/v1/runs",
        {
            "session_key": "s",
            "key": "r-1",
            "steps": [{"tool": "look"}, {"tool": "refund", "requires_approval": True}],
        },
    ).json
    page = open_page(f"runs/{made['id']}/", role="operator")
    wait_live(page)
    claimed = {"worker": "w-1", "run": made["id"]}
    [step] = api.post("/api/v1/steps/claim", claimed).json["steps"]
    page.wait_for_selector("#step-0 .tag--in_progress")
    item = {"step": step["step"], "lease_token": step["lease_token"], "result": 1}
    api.post("/api/v1/steps/complete", {"items": [item]})
    page.wait_for_selector("#run-state.tag--waiting")
    wait_until_settled()  # or the inbox hears of it late, and loads anew
    inbox = open_page("inbox/", role="operator")
    inbox.click("text=Approve >> nth=1")
    inbox.fill(".inbox details[open] textarea[name=reason]", "looks right")
    inbox.click(".inbox details[open] button")
    inbox.wait_for_selector(".note--success")
    [released] = api.post("/api/v1/steps/claim", claimed).json["steps"]
    page.wait_for_selector("#step-1 .tag--in_progress")
    assert released["tool"] == "refund"
    audit = api.get("/api/v1/audit", params={"action": "step.approved"}).json["items"]
    assert audit[0]["reason"] == "looks right"
    assert page.faults == inbox.faults == []


def test_keys_lead_from_page_to_page(api, open_page):
    make_session(api, title="one")
    wait_until_settled()  # or the list hears of it late, and loads anew
    page = open_page("")
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.wait_for_url("**/sessions/")
    page.keyboard.press("j")
    page.wait_for_selector("[data-row].is-at")
    page.keyboard.press("Enter")
    page.wait_for_selector("#log-title")
    page.wait_for_load_state()  # who hears the keys comes after the text
    page.keyboard.press("/")
    page.wait_for_selector("[name=q]:focus")


def test_pages_work_without_scripts(api, open_page):
    session = make_session(api, state={"step": "pay"})
    append(api, session, 120, content="hello there")
    page = open_page(f"sessions/{session}/", java_script_enabled=False)
    assert page.text_content("#past .json-string") == "pay"
    page.click("#earlier")
    wait_for_seq(page, 1)
    assert shown_seqs(page)[0] == 1
    page.click("#e2 .event__seq")
    page.wait_for_url(lambda url: url.endswith("?seq=2#e2"))


def test_db_06_the_readers_zone_decides_the_day(api, clock, open_page):
    from datetime import UTC, datetime

    session = make_session(api)
    at = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)  # the 28th in Los Angeles
    clock.advance(seconds=(at - datetime.now(UTC)).total_seconds())
    append(api, session, 1)
    for zone, day in (
        ("Europe/Berlin", "2026-03-29"),
        ("America/Los_Angeles", "2026-03-28"),
    ):
        address = f"search/?day={day}"
        page = open_page(address, timezone_id=zone, zone_is_told=False)
        page.wait_for_selector(f".zone-note:has-text('{zone}')")
        page.wait_for_selector("#found li")
