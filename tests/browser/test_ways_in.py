"""Ways in: the API's documentation, and single sign-on through a browser."""

import pytest
from playwright.sync_api import expect

from agentstate.ids import new_id
from tests.browser.conftest import PATIENCE_MS
from tests.oidc import CLIENT_ID, CLIENT_SECRET, provider
from tests.server import Server

__all__ = ["provider"]


def test_the_api_documentation_shows_the_calls(open_page):
    page = open_page("/api/v1/docs")
    page.locator(".opblock").nth(50).wait_for()
    page.locator(".opblock-summary").first.click()
    page.wait_for_selector(".opblock-body")
    assert page.faults == []


@pytest.fixture
def signs_on(provider, tmp_path, database):
    """A server that trusts the provider."""
    running = Server(
        tmp_path,
        AGENTSTATE_OIDC_ISSUER=provider.issuer,
        AGENTSTATE_OIDC_CLIENT_ID=CLIENT_ID,
        AGENTSTATE_OIDC_CLIENT_SECRET=CLIENT_SECRET,
        AGENTSTATE_OIDC_NAME="the company account",
    )
    running.start()
    yield running
    running.stop()


def test_single_sign_on_leads_to_the_page_that_was_asked_for(
    chromium, signs_on, provider, make_user, project
):
    address = f"{new_id()}@example.test"
    make_user(project, "viewer", email=address)
    provider.person = {"sub": str(new_id()), "email": address, "email_verified": True}
    context = chromium.new_context(base_url=signs_on.base_url)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    violations = []
    page.on(
        "console",
        lambda m: violations.append(m.text) if "Content Security" in m.text else None,
    )
    page.goto(f"/p/{project.slug}/runs/?state=failed")
    page.get_by_text("Sign in with the company account").click()
    page.wait_for_url(f"**/p/{project.slug}/runs/?state=failed")
    assert page.locator("h1").inner_text() == "Runs"
    cookies = {c["name"]: c for c in context.cookies()}
    assert (
        cookies["sessionid"]["httpOnly"] and cookies["sessionid"]["sameSite"] == "Lax"
    )
    provider.refuses = "access_denied"
    context.clear_cookies()
    page.goto("/sign-in/")
    page.get_by_text("Sign in with the company account").click()
    page.get_by_role("alert").wait_for()
    assert violations == []
    context.close()


def test_signing_out_leads_through_the_provider(
    chromium, provider, make_user, project, tmp_path, database
):
    running = Server(
        tmp_path,
        AGENTSTATE_OIDC_ISSUER=provider.issuer,
        AGENTSTATE_OIDC_CLIENT_ID=CLIENT_ID,
        AGENTSTATE_OIDC_CLIENT_SECRET=CLIENT_SECRET,
        AGENTSTATE_OIDC_SIGN_OUT="1",
    )
    running.start()
    address = f"{new_id()}@example.test"
    name = make_user(project, "viewer", email=address).username
    provider.person = {"sub": str(new_id()), "email": address, "email_verified": True}
    context = chromium.new_context(base_url=running.base_url)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(f"/sign-in/single/?next=/p/{project.slug}/runs/")
    page.wait_for_url(f"**/p/{project.slug}/runs/")
    page.get_by_label(f"Account {name}").click()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/sign-in/")
    assert provider.signed_out == [provider.person["sub"]]
    context.close()
    running.stop()


def test_a_refused_form_is_filled_in_as_it_was(open_page, project):
    page = open_page("settings/")
    page.get_by_text("Add a member").click()
    page.get_by_label("Name of the account").fill("nobody-of-this-name")
    page.locator("#member-role").select_option("operator")
    page.locator("#member-reason").fill("helps us </script>")
    page.get_by_role("button", name="Add", exact=True).click()
    page.get_by_text("There is no account named").wait_for()
    # A script fills them in, and may come after the text.
    name = page.get_by_label("Name of the account")
    expect(name).to_have_value("nobody-of-this-name")
    expect(page.locator("#member-role")).to_have_value("operator")
    expect(page.locator("#member-reason")).to_have_value("helps us </script>")
    limit = page.locator("#storage-limit")
    limit.fill("much")
    page.locator("#storage-reason").fill("why not")
    page.locator("#storage").get_by_role("button", name="Save").click()
    page.get_by_text("is no number of MB").wait_for()
    expect(page.locator("#storage-limit")).to_have_value("much")
    expect(page.locator("#storage-reason")).to_have_value("why not")
    assert page.faults == []
