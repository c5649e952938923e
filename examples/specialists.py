"""A planner that hands parts of its task to two specialists, each a process of its own.

    python -m examples.specialists

The planner knows the conversation; the specialists get a task, what they need for it,
and limits that the server holds them to. All that travels to them is a ticket: the
handoff's id and a key to a session of their own. All that comes back is
`{summary, data}`.
"""

import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any

from agentstate_client import (
    Assignment,
    Client,
    Context,
    Run,
    ToolNotAllowed,
    Worker,
    delegate_to_specialist,
)

from examples.connection import connect

SPAWN = multiprocessing.get_context("spawn")  # nothing is shared but what is passed
CHARGES = [("2026-01-14", 30), ("2026-01-14", 30), ("2026-01-02", 12)]

Connection = tuple[str, str]  # URL and key
# Queues stand for whatever carries messages between your agents.
Tickets = dict[str, Any]


def plan(connection: Connection, tickets: Tickets) -> None:
    """The planner's process: one step, in which work is handed on twice."""
    with Client(*connection) as client:
        worker = Worker(client, name="planner", agents=["planner"])

        @worker.tool("answer_customer", effect="idempotent")
        def answer_customer(ctx: Context) -> Any:
            found = delegate_to_specialist(
                ctx.run_id,
                "billing",
                "Find out what was charged twice.",
                lambda assignment: tickets["billing"].put(assignment.ticket),
                context={"last_events": 3},
                constraints={
                    "tool_allowlist": ["list_charges"],
                    "max_tool_calls": 2,
                    "timeout_s": 120,
                },
                key="charges",  # killed here, the next attempt goes on with the same
                client=ctx.client,
            )
            return delegate_to_specialist(
                ctx.run_id,
                "writer",
                "Tell the customer what we found, in one sentence.",
                lambda assignment: tickets["writer"].put(assignment.ticket),
                context={"inline": found},
                constraints={"tool_allowlist": [], "timeout_s": 120},
                key="reply",
                client=ctx.client,
            )

        worker.run(until_idle=True)


def serve(url: str, tickets: Any, work: Callable[[Assignment, Client], Any]) -> None:
    """A specialist's process: takes tickets until there is None."""
    while (ticket := tickets.get()) is not None:
        with Client(url, ticket["token"]) as client:
            assignment = Assignment(ticket, client)
            assignment.complete(*work(assignment, client))


def billing(assignment: Assignment, client: Client) -> tuple[str, Any]:
    """Works through steps of its own run, and may use one tool."""
    handoff = assignment.accept(f"billing-{os.getpid()}")
    worker = Worker(client, name="billing")

    @worker.tool("list_charges", effect="none")
    def list_charges(ctx: Context) -> Any:
        return CHARGES

    run = client.runs.get(handoff.child_run)
    step = worker.step("list_charges", depends_on=[])
    client.runs.append_steps(run.id, [step], run.plan_version)
    worker.run(until_idle=True)
    charges = [tuple(c) for c in client.runs.get(run.id).steps[-1].result]
    twice = sorted({charge for charge in charges if charges.count(charge) > 1})
    return f"{len(twice)} charge was made twice", {"twice": twice, **who()}


def writer(assignment: Assignment, client: Client) -> tuple[str, Any]:
    """Has no tools at all, and the server sees to that."""
    told = assignment.to_prompt_context(f"writer-{os.getpid()}")
    handoff = assignment.accept()
    assert handoff.bundle is not None
    [[day, amount]] = handoff.bundle["inline"]["data"]["twice"]
    call = {"tool_call_id": "c1", "name": "send_email", "arguments": {}}
    try:
        client.events.append(handoff.child_session, "tool.call", call)
    except ToolNotAllowed:
        refused = call["name"]
    reply = f"We charged {amount} twice on {day} and pay one of them back."
    client.events.append(handoff.child_session, "message.assistant", {"content": reply})
    return reply, {"task": told["task"], "refused": refused, **who()}


def who() -> dict[str, int]:
    return {"process": os.getpid()}


WORK = {"billing": billing, "writer": writer}


def main(client: Client) -> Run:
    connection = (client.connection.base_url, client.connection.api_key)
    session = client.sessions.create(key=f"charges-{time.time_ns()}", agent="planner")
    client.events.append(
        session.id, "message.user", {"content": "Why was I charged twice?"}
    )
    run = client.runs.create(
        [{"tool": "answer_customer"}], session=session.id, agent="planner"
    )
    tickets = {name: SPAWN.Queue() for name in WORK}
    specialists = [
        SPAWN.Process(target=serve, args=(connection[0], tickets[name], work))
        for name, work in WORK.items()
    ]
    planner = SPAWN.Process(target=plan, args=(connection, tickets))
    for process in (*specialists, planner):
        process.start()
    planner.join()
    for name in WORK:
        tickets[name].put(None)
    for process in specialists:
        process.join()

    run = client.runs.get(run.id)
    print(f"the planner's run has {run.state}")
    for handoff in reversed(client.handoffs.list(run.id).items):
        result = handoff.result or {}
        print(f"  {handoff.agent}, process {result['data']['process']}:")
        print(f"    {handoff.status}: {result['summary']}")
    below = client.handoffs.tree(run.id)["children"]
    print(f"runs below it: {', '.join(child['state'] for child in below)}")
    print(f"the answer: {run.steps[0].result['summary']}")
    return run


if __name__ == "__main__":
    with connect() as client:
        main(client)
