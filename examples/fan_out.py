"""One step splits the work, many do it side by side, one joins it. With asyncio.

    python -m examples.fan_out

The plan says what depends on what; the workers say how many run at once. Progress is
counted in the run's working memory, which ends with the run.
"""

import asyncio
import time
from typing import Any

from agentstate_client import AsyncClient, AsyncContext, AsyncWorker, AsyncWorkingMemory

from examples.connection import connect

PAGES = 12
AT_ONCE = 6


def build_worker(client: AsyncClient) -> AsyncWorker:
    worker = AsyncWorker(client, name="readers", concurrency=AT_ONCE, lease_s=10)

    @worker.tool("list_pages", effect="none")
    async def list_pages(ctx: AsyncContext) -> Any:
        return [f"/page/{number}" for number in range(PAGES)]

    @worker.tool("read_page", effect="none")
    async def read_page(ctx: AsyncContext) -> Any:
        await ctx.sleep(0.2)  # stands for a slow page
        done = await AsyncWorkingMemory(ctx.run_id, ctx.client).increment("read")
        print(f"  page {ctx.args['page']:>2}: {done} of {PAGES} read")
        return {"page": ctx.args["page"], "words": 100 + ctx.args["page"]}

    @worker.tool("sum_up", effect="none")
    async def sum_up(ctx: AsyncContext) -> Any:
        steps = [step async for step in ctx.client.runs.steps(ctx.run_id)]
        return sum(s.result["words"] for s in steps if s.tool == "read_page")

    return worker


async def main(client: AsyncClient) -> None:
    worker = build_worker(client)
    readers = range(1, PAGES + 1)
    run = await client.runs.create(
        [
            worker.step("list_pages"),
            *[worker.step("read_page", {"page": n}, depends_on=[0]) for n in readers],
            worker.step("sum_up", depends_on=list(readers)),
        ],
        session_key=f"reading-{time.time_ns()}",
        agent="readers",
    )
    began = time.monotonic()
    await worker.run(until_idle=True)
    run = await client.runs.get(run.id)
    print(f"the run has {run.state} in {time.monotonic() - began:.1f} s")
    print(f"words: {run.steps[-1].result}")


async def run_with(url: str, key: str) -> None:
    async with AsyncClient(url, key) as client:
        await main(client)


if __name__ == "__main__":
    with connect() as blocking:
        connection = blocking.connection
    asyncio.run(run_with(connection.base_url, connection.api_key))
