"""A payment that a person approves first, with another amount.

    python -m examples.approval          # approves by itself, through the API
    python -m examples.approval --wait   # waits for you, in the dashboard

The worker claims what is to be done and never sees the payment until it is approved;
what it is handed then are the arguments that the person settled on.
"""

import argparse
import threading
import time
from typing import Any

from agentstate_client import Client, Context, Worker

from examples.connection import connect


def build_worker(client: Client) -> Worker:
    worker = Worker(client, name="payments", wait_s=1, agents=["payments"])

    @worker.tool("propose", effect="none")
    def propose(ctx: Context) -> Any:
        return {"amount": ctx.args["amount"]}

    @worker.tool("pay", effect="once")
    def pay(ctx: Context) -> Any:
        return {"paid": ctx.args["amount"], "key": ctx.idempotency_key}

    return worker


def main(client: Client, *, waits: bool = False) -> None:
    worker = build_worker(client)
    run = client.runs.create(
        [
            worker.step("propose", {"amount": 500}),
            worker.step("pay", {"amount": 500}, requires_approval=True),
        ],
        session_key=f"payment-{time.time_ns()}",
        agent="payments",
    )
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        step = wait_for_approval(client, run.id)
        print(f"run {run.id}: {step.tool} {step.args} waits for approval")
        if waits:
            print("approve or reject it at /approvals")
        else:
            client.steps.approve(step.id, args={"amount": 50}, reason="a typing error")
            print("approved, with 50 in place of 500")
        while not (run := client.runs.get(run.id)).has_ended:
            time.sleep(0.2)
    finally:
        worker.stop()
        thread.join()
    print(f"the run has {run.state}: {run.steps[1].result or run.steps[1].error}")


def wait_for_approval(client: Client, run_id: str) -> Any:
    while True:
        for item in client.steps.inbox(kind="approval"):
            if item.step.run == run_id:
                return item.step
        time.sleep(0.1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--wait", action="store_true", help="let a person decide")
    options = parser.parse_args()
    with connect() as client:
        main(client, waits=options.wait)
