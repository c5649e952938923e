"""Many sockets: none misses an event, whatever the others do and whoever restarts."""

import asyncio
import time

import httpx
import pytest

from tests.live.crowd import all_live, all_reach, crowd, stalled
from tests.people import append, make_session


def open_sockets(url):
    lines = httpx.get(f"{url}/metrics", timeout=30).text.splitlines()
    [line] = [x for x in lines if x.startswith("agentstate_sockets ")]
    return float(line.split()[1])


async def add(api, session, count, **payload):
    await asyncio.to_thread(append, api, session, count, **payload)


def restart_with(count, seconds, api, make_key, server_factory):
    """The case: all dashboards are open, the server is killed and comes back."""
    server = server_factory(AGENTSTATE_SOCKETS_PER_PROCESS=str(count))
    session, key = make_session(api), make_key()

    async def story():
        async with crowd(server.base_url, key, [session], count) as pages:
            await all_live(pages, seconds)
            await add(api, session, 3)
            await all_reach(pages, 3, seconds)
            # One more is told at once to come back, and REST answers all the while.
            async with crowd(server.base_url, key, [session], 1) as [late]:
                async with asyncio.timeout(seconds):
                    while not late.refusals:
                        await asyncio.sleep(0.02)
                assert late.refusals[0] == 5 and not late.live.is_set()
            health = await asyncio.to_thread(server.get, "/healthz")
            assert health.status_code == 200

            server.kill()
            await add(api, session, 4)
            server.restart()
            await add(api, session, 5)
            found = await asyncio.to_thread(server.get, "/healthz")
            assert found.status_code == 200
            await all_reach(pages, 12, seconds)
            assert all(page.welcomes >= 2 for page in pages)
            assert [page.gaps for page in pages if page.gaps] == []

    asyncio.run(story())


def test_ws_08_dashboards_come_back_after_a_restart(api, make_key, server_factory):
    """60 of the case's 1000 here; the soak does the rest."""
    restart_with(60, 120, api, make_key, server_factory)


@pytest.mark.soak
def test_ws_08_a_thousand_dashboards_come_back(api, make_key, server_factory):
    restart_with(1000, 60, api, make_key, server_factory)


def test_a_client_that_stops_reading_keeps_nothing_from_the_others(
    api, make_key, server
):
    session, key = make_session(api), make_key()
    stuck = stalled(server.base_url, key, session)

    async def story():
        async with crowd(server.base_url, key, [session], 5) as pages:
            await all_live(pages, 60)
            for _ in range(20):
                await add(api, session, 5, more="x" * 40_000)
            await all_reach(pages, 100, 60)
            assert [page.gaps for page in pages if page.gaps] == []

    asyncio.run(story())
    assert stuck.recv(1)  # it was sent its part, and has read none of it
    stuck.close()


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_thousand_sockets_follow_for_five_minutes(api, make_key, server_factory):
    server = server_factory()
    sessions = [make_session(api) for _ in range(20)]
    key, end = make_key(), 300.0

    async def story():
        async with crowd(server.base_url, key, sessions, 1000) as pages:
            await all_live(pages, 120)
            stuck = [stalled(server.base_url, key, s) for s in sessions]
            begun, sent = time.monotonic(), 0
            while time.monotonic() - begun < end:
                for session in sessions:
                    await add(api, session, 1, more="x" * 2000)
                sent += 1
                await asyncio.sleep(1)
            await all_reach(pages, sent, 60)
            assert [page.gaps for page in pages if page.gaps] == []
            assert all(page.welcomes == 1 for page in pages), "none was cut"
            assert open_sockets(server.base_url) <= 1000 + len(stuck)
            for each in stuck:
                each.close()
            print(f"{sent} events in each of 20 sessions, to 1,000 sockets")

    asyncio.run(story())
