"""How soon an event is in a page: a real browser beside many other sockets."""

import asyncio
import shutil
from datetime import datetime
from typing import Any

import httpx
from playwright.async_api import async_playwright

from bench.sockets import Crowd, Followed

NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
# Notes when each row came into the document, by the clock that the server has too.
OBSERVE = """
window.arrived = {};
new MutationObserver(records => {
  const now = performance.timeOrigin + performance.now();
  for (const record of records) for (const node of record.addedNodes)
    if (node.dataset && node.dataset.seq) arrived[node.dataset.seq] = now;
}).observe(document, {childList: true, subtree: true});
"""


def chromium() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


async def measure(
    base_url: str,
    key: str,
    cookies: dict[str, str],
    *,
    sockets: int,
    per_second: int,
    seconds: float,
) -> Followed:
    """`seconds` is from the event's row to its row in the page of its session."""
    crowd = Crowd(base_url, key)
    await crowd.gather(sockets)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium(), args=ARGUMENTS
        )
        context = await browser.new_context(base_url=base_url)
        await context.add_cookies(
            [{"name": n, "value": v, "url": base_url} for n, v in cookies.items()]
        )
        page = await context.new_page()
        await page.add_init_script(OBSERVE)
        await page.goto(f"/p/bench/sessions/{crowd.sessions[0]}/")
        await page.wait_for_selector('#link-state[data-state="live"]')
        await crowd.append(per_second, seconds)
        await asyncio.sleep(2)
        arrived = await page.evaluate("arrived")
        await browser.close()
    await crowd.disperse()
    written = await _written(base_url, key, crowd.sessions[0])
    shown = Followed()
    for seq, at in written.items():
        if seq in arrived:
            shown.seconds.append(arrived[seq] / 1000 - at)
        else:
            shown.lost += 1
    return shown


async def _written(base_url: str, key: str, session: str) -> dict[str, float]:
    headers = {"Authorization": f"Bearer {key}"}
    path = f"/api/v1/sessions/{session}/events"
    found: list[dict[str, Any]] = []
    async with httpx.AsyncClient(base_url=base_url, headers=headers) as http:
        while not found or found[-1]["seq"] % 1000 == 0:
            after = found[-1]["seq"] if found else 0
            params: dict[str, Any] = {"after_seq": after, "limit": 1000}
            page = (await http.get(path, params=params)).json()["items"]
            if not page:
                break
            found += page
    return {
        str(event["seq"]): datetime.fromisoformat(event["created_at"]).timestamp()
        for event in found
    }
