"""A refund that is paid once, though the worker that pays it is killed.

    python -m examples.refund_agent

A worker process looks up an order, pays the refund and is killed with SIGKILL in that
moment: the service has paid, and nobody has recorded it. The step is `once`, so its
outcome is in doubt and no other worker touches it. The agent asks the service with the
step's idempotency key, settles the step with what it says, and a second worker goes on.
"""

import multiprocessing
import os
import signal
import time
from typing import Any

import httpx
from agentstate_client import Client, Context, ExecutionState, Worker

from examples.connection import connect
from examples.downstream import Downstream

LEASE = 2.0  # seconds: soon after a worker's death its step is free again

Connection = tuple[str, str]  # URL and key


def build_worker(client: Client, service: str, *, dies: bool) -> Worker:
    worker = Worker(client, name="refunds", lease_s=LEASE)

    @worker.tool("look_up_order", effect="none")
    def look_up_order(ctx: Context) -> Any:
        return {"order": ctx.args["order"], "amount": 30}

    @worker.tool("pay_refund", effect="once")
    def pay_refund(ctx: Context) -> Any:
        answer = httpx.post(
            f"{service}/refunds",
            json=ctx.args,
            headers={"Idempotency-Key": ctx.idempotency_key},
        )
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer.json()

    @worker.tool("tell_customer", effect="idempotent")
    def tell_customer(ctx: Context) -> Any:
        return {"told": ctx.args["to"]}

    return worker


def work(connection: Connection, service: str, dies: bool) -> None:
    with Client(*connection) as client:
        build_worker(client, service, dies=dies).run(until_idle=True)


def start_worker(connection: Connection, service: str, *, dies: bool) -> int:
    """Let a worker process work to its end; return its exit code."""
    fresh = multiprocessing.get_context("spawn")
    process = fresh.Process(target=work, args=(connection, service, dies))
    process.start()
    process.join()
    return process.exitcode or 0


def main(client: Client) -> None:
    connection = (client.connection.base_url, client.connection.api_key)
    service = Downstream(honours_keys=False).start()
    plan = ExecutionState(f"refund-{time.time_ns()}", client, agent="refunds")
    worker = build_worker(client, service.url, dies=False)
    run = plan.init_plan(
        [
            worker.step("look_up_order", {"order": 1042}),
            worker.step("pay_refund", {"order": 1042, "amount": 30}),
            worker.step("tell_customer", {"to": "ada"}),
        ]
    )
    print(f"run {run.id}")

    code = start_worker(connection, service.url, dies=True)
    print(f"the first worker ended with {code}: killed as it paid")

    while (step := plan.next_pending_step()) is not None and step.state != "in_doubt":
        start_worker(connection, service.url, dies=False)  # finds nothing to claim yet
        time.sleep(LEASE / 4)
    assert step is not None
    print(f"step {step.index} ({step.tool}) is {step.state}; nobody repeats it")

    receipt = httpx.get(f"{service.url}/refunds/{step.idempotency_key}")
    if receipt.status_code == 200:
        plan.resolve(step.index, "done", receipt.json())
        print(f"the service says it is paid: {receipt.json()['refund']}")
    else:
        plan.resolve(step.index, "not_done")
        print("the service knows nothing of it: it is paid now")

    start_worker(connection, service.url, dies=False)
    for step in plan.steps():
        print(f"  {step.index} {step.tool:<15} {step.state:<6} {step.result}")
    counts = service.counts()
    service.stop()
    print(f"paid {sum(each['carried_out'] for each in counts.values())} time")


if __name__ == "__main__":
    with connect() as client:
        main(client)
