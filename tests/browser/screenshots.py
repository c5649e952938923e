"""Pictures of every page, light, dark and narrow: `make screenshots`."""

from pathlib import Path

import pytest

from tests.artifacts.calls import upload
from tests.browser.conftest import wait_live
from tests.factories import SessionApi
from tests.people import make_session

FOLDER = Path(__file__).resolve().parents[2] / "screenshots"
LOOKS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1180, "height": 720}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1180, "height": 720}},
    "narrow": {"color_scheme": "light", "viewport": {"width": 375, "height": 740}},
}


@pytest.fixture
def project():
    from access_app.services import create_project

    return create_project("Shop support")


@pytest.fixture
def client(project):
    """Somebody of a readable name, signed in."""
    from django.contrib.auth.models import User
    from django.test import Client

    from access_app.services import add_member

    user = User.objects.create_user("maya.lopes", is_staff=True)
    add_member(project.id, user, "owner", reason="runs the shop")
    signed_in = Client()
    signed_in.force_login(user)
    return signed_in


class Shop:
    """A small shop's agents, as the API sees them at work."""

    def __init__(self, api):
        self.api = api

    def talk(self, key, subject, turns, **state):
        session = make_session(
            self.api,
            key=key,
            title=turns[0][0],
            agent="support",
            subject=subject,
            labels={"channel": "chat"},
            state={"step": "greet"},
        )
        for number, (question, tool, answer) in enumerate(turns):
            call = f"call_{number}"
            events = [
                ("message.user", {"content": question}),
                ("tool.call", {"tool_call_id": call, "name": tool, "arguments": state}),
                ("tool.result", {"tool_call_id": call, "content": {"ok": True}}),
                ("message.assistant", {"content": answer}),
            ]
            body = {"events": [{"type": t, "payload": p} for t, p in events]}
            self.api.post(f"/api/v1/sessions/{session}/events", body)
            body = {
                "state": {"step": tool, "turns": number + 1, **state},
                "expected_version": number + 1,
            }
            self.api.put(f"/api/v1/sessions/{session}/state", body)
        return session

    def run(self, key, steps, **fields):
        body = {"session_key": f"runs-{key}", "key": key, "agent": "billing"}
        return self.api.post("/api/v1/runs", body | {"steps": steps} | fields).json[
            "id"
        ]

    def work(self, run, worker, *outcomes):
        for outcome in outcomes:
            claim = {"worker": worker, "run": run}
            [step] = self.api.post("/api/v1/steps/claim", claim).json["steps"]
            item = {"step": step["step"], "lease_token": step["lease_token"]}
            if outcome is None:
                return
            call, rest = outcome
            self.api.post(f"/api/v1/steps/{call}", {"items": [item | rest]})


DONE = ("complete", {"result": {"ok": True}})
FAILED = ("fail", {"error": {"code": "http_503", "message": "The shop is away"}})


def furnish(api):
    shop = Shop(api)
    session = shop.talk(
        "order-1042",
        "maya",
        [
            ("Where is order 1042?", "find_order", "It left our warehouse today."),
            ("Please send invoices as PDF.", "note", "I will, from now on."),
            ("And a refund for 1041?", "refund", "It is on its way to your account."),
        ],
        order_id=1042,
        customer={"id": 10**20 + 7, "tier": "gold"},
    )
    for number in range(12):
        shop.talk(
            f"order-{1100 + number}",
            f"customer-{number}",
            [(f"Can I change order {1100 + number}?", "find_order", "Until tonight.")],
        )
    refund = [
        {"tool": "find_order", "args": {"order": 1042}},
        {"tool": "check_stock", "depends_on": [0]},
        {"tool": "price", "depends_on": [0], "retry": {"backoff_s": 0.05}},
        {
            "tool": "refund",
            "args": {"order": 1042, "amount": "42.50 EUR"},
            "requires_approval": True,
            "depends_on": [1, 2],
            "effect": "once",
        },
        {"tool": "send_email", "args": {"to": "maya@example.test"}},
    ]
    run = shop.run("refund-1042", refund, labels={"team": "billing"})
    shop.work(run, "worker-7", DONE, DONE, DONE)
    for number in range(8):
        done = shop.run(f"report-{number}", [{"tool": "load"}, {"tool": "write"}])
        shop.work(done, "worker-3", DONE, DONE)
    shop.work(shop.run("report-8", [{"tool": "load"}]), "worker-3", None)
    once = {"retry": {"max_attempts": 1}}
    shop.work(shop.run("import-77", [{"tool": "import", **once}]), "worker-1", FAILED)
    held = {"tool": "charge", "on_exhausted": "hold", **once}
    shop.work(shop.run("charge-12", [held]), "worker-1", FAILED)
    shop.run("report-9", [{"tool": "load"}])
    whole = shop.run("return-77", [{"tool": "read_complaint"}])
    parent = whole
    for agent, task in (("billing", "Refund order 77"), ("bank", "Pay 39 EUR")):
        body = {"agent": agent, "task": task}
        parent = api.post(f"/api/v1/runs/{parent}/handoffs", body).json["child_run"]
    body = {"agent": "warehouse", "task": "Expect the kettle"}
    api.post(f"/api/v1/runs/{whole}/handoffs", body)
    figures = b"order,amount\n1042,30.00\n1043,12.50\n"
    artifact = upload(
        SessionApi(api, session), figures, "refunds.csv", media_type="text/csv"
    ).json["id"]
    upload(SessionApi(api, session), b"%PDF-1.7" * 9000, "invoice-1042.pdf")
    source = {"session": session, "seqs": [7]}
    for fact, kind in (
        ("Prefers invoices as PDF", "preference"),
        ("Is a gold customer since 2021", "profile"),
    ):
        body = {"subject": "maya", "fact": fact, "kind": kind, "source": source}
        made = api.post("/api/v1/memory", body).json["id"]
    return {
        "overview": "",
        "runs": "runs/?state=failed&state=waiting&agent=billing",
        "runs-all": "runs/",
        "tree": f"runs/{whole}/",
        "run": f"runs/{run}/",
        "inbox": "inbox/",
        "workers": "workers/",
        "sessions": "sessions/",
        "session": f"sessions/{session}/",
        "context": f"sessions/{session}/context/",
        "event": f"sessions/{session}/events/3/",
        "artifacts": "artifacts/",
        "artifact": f"artifacts/{artifact}/",
        "search": "search/?q=warehouse",
        "search-day": "search/?hours=24",
        "memory": "memory/",
        "facts": "memory/?view=facts",
        "subject": "memory/subject/?subject=maya",
        "fact": f"memory/facts/{made}/",
        "forgetting": "memory/forget/?subject=maya",
        "audit": "audit/",
        "settings": "settings/",
        "storage": "settings/storage/",
        "not-found": "no-such-page/",
    }


def test_take_them(api, open_page, client, project):
    FOLDER.mkdir(exist_ok=True)
    pages = furnish(api)
    for name, query, shared in (
        ("Needs somebody", "state=failed&state=waiting&agent=billing", "on"),
        ("My refunds", "label=team:billing", ""),
    ):
        form = {"page": "runs", "name": name, "query": query, "shared": shared}
        client.post(f"/p/{project.slug}/views/", form)
    for look, options in LOOKS.items():
        page = open_page("", client=client, **options)
        wait_live(page)
        for name, path in pages.items():
            page.goto(f"/p/{project.slug}/{path}")
            page.wait_for_load_state("networkidle")
            page.screenshot(path=FOLDER / f"{name}-{look}.png")
        page.goto("/admin/memory_app/fact/")
        page.screenshot(path=FOLDER / f"admin-facts-{look}.png")
        page.get_by_text("Is a gold customer").first.click()
        page.wait_for_load_state("networkidle")
        page.screenshot(path=FOLDER / f"admin-fact-{look}.png")
        page.goto("/api/v1/docs")
        page.wait_for_selector(".opblock")
        page.screenshot(path=FOLDER / f"api-docs-{look}.png")
        page.context.clear_cookies()
        page.goto("/sign-in/")
        page.screenshot(path=FOLDER / f"sign-in-{look}.png")
