"""One headless Chromium and one server for all browser tests.

Playwright's loop runs in this thread while the browser is open, so Django is told that
its calls here are meant; both end with the package.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import call_command

from tests.people import browse, make_user
from tests.server import Server

__all__ = ["browse", "make_user"]

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 60_000  # for each wait: the machine may be busy


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium here: scripts/chromium installs it where it may")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)

    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=ARGUMENTS, timeout=PATIENCE_MS
        )
        yield browser
        browser.close()
    if before is None:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture(scope="package")
def server(
    database: None, chromium: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server that has the static files, for all browser tests."""
    call_command("collectstatic", interactive=False, verbosity=0)
    running = Server(tmp_path_factory.mktemp("browser"))
    running.start()
    yield running
    running.stop()


@pytest.fixture
def open_page(
    chromium: Any, server: Any, browse: Any, project: Any
) -> Iterator[Callable[..., Any]]:
    """open_page(path, role=…) is a page of the project as a member of that role.

    The page keeps what went wrong in it: scripts' errors, policy violations, dialogs.
    Its zone is told beforehand: a page whose days are of another zone loads once more,
    at a moment of its own. `zone_is_told=False` leaves that to the page.
    """
    contexts = []

    def open_one(path: str = "", *, role: str = "owner", **options: Any) -> Any:
        base = options.pop("base", server.base_url)
        client = options.pop("client", None) or browse(role)
        options.setdefault("timezone_id", "Europe/Berlin")
        zone_is_told = options.pop("zone_is_told", True)
        context = chromium.new_context(base_url=base, **options)
        contexts.append(context)
        name, morsel = next(iter(client.cookies.items()))
        context.add_cookies([{"name": name, "value": morsel.value, "url": base}])
        if zone_is_told:
            zone = {"name": "zone", "value": options["timezone_id"], "url": base}
            context.add_cookies([zone])
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.faults = []
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on("dialog", lambda dialog: page.faults.append(dialog.message))
        page.on("console", lambda m: _keep_violation(page.faults, m))
        page.goto(path if path.startswith("/") else f"/p/{project.slug}/{path}")
        return page

    yield open_one
    for context in contexts:
        context.close()


def _keep_violation(faults: list[str], message: Any) -> None:
    if "Content Security Policy" in message.text:
        faults.append(message.text)


def wait_live(page: Any) -> None:
    page.wait_for_selector('#link-state[data-state="live"]')
