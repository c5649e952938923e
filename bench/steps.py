"""Step lives: claim and complete over HTTP, and beside it the same SQL by pgbench."""

import hashlib
import itertools
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg

from bench.client import Asks, Failed, Measured, load, request
from bench.measures import Bench
from bench.postgres import PgBench
from bench.stack import ROOT, Stack

SESSIONS = 64
WINDOW = 1000  # steps of a run that are ready at a time
# What our server sends for a claim, a completion, or both at once. The variables of
# pgbench hold what was claimed until it is completed.
TURN = """
SELECT coalesce(cardinality(t.claimed), 0) AS number,
       ARRAY(SELECT c::json ->> 'step' FROM unnest(t.claimed) AS c)::text AS steps,
       ARRAY(SELECT c::json ->> 'lease_token' FROM unnest(t.claimed) AS c)::text
       AS tokens,
       array_fill('null'::text, ARRAY[coalesce(cardinality(t.claimed), 0)])::text
       AS results,
       array_fill('\\x{digest}'::text, ARRAY[coalesce(cardinality(t.claimed), 0)])::text
       AS hashes
  FROM agentstate_take_turn(
    '{project}', 'bench', NULL, NULL, 'pgbench', {max}, 30, NULL, ARRAY['{tool}'],
    NULL{ended}) AS t \\gset
"""
ENDED = """, 'complete', :steps::uuid[], :tokens::bigint[], :results::text[],
    :hashes::bytea[]"""
APART = "{claim}\\if :number > 0\n{complete}\\endif\n"
CHAINED = "\\if :number = 0\n{claim}\\else\n{both}\\endif\n"
WORKER = """
import sys, time
from agentstate_client import Client, Worker

worker = Worker(Client(sys.argv[1], sys.argv[2]), lease_s=float(sys.argv[3]))

@worker.tool(sys.argv[4])
def hold(ctx):
    print("working", flush=True)
    time.sleep(600)

worker.run()
"""


@dataclass(frozen=True)
class Work:
    """What each worker does: claim up to `size` steps, complete them, again."""

    key: str
    tool: str
    size: int
    chained: bool  # complete and claim the next in one call

    def __call__(self, number: int) -> Asks:
        """A life of a step ends with its completion; the claim counts with it."""
        wanted = {"worker": f"bench-{number}", "tools": [self.tool], "max": self.size}
        steps: list[Any] = []
        while True:
            if not steps:
                answer = yield self.request("claim", wanted), 0
                steps = json.loads(answer)["steps"]
                if not steps:
                    raise Failed("the steps to work on have run out")
            body: dict[str, Any] = {
                "items": [
                    {"step": s["step"], "lease_token": s["lease_token"], "result": None}
                    for s in steps
                ]
            }
            if self.chained:
                body["claim_next"] = wanted
            found = json.loads((yield self.request("complete", body), len(steps)))
            if not all(item["ok"] for item in found["items"]):
                raise Failed(f"not completed: {found['items'][:1]}")
            steps = found.get("steps", [])

    def request(self, call: str, body: Any) -> bytes:
        path = f"/api/v1/steps/{call}"
        return request("POST", path, self.key, json.dumps(body).encode())


class StepBench:
    """Measures of the work on steps, on the server and database of `bench`."""

    def __init__(self, bench: Bench, pgbench: PgBench) -> None:
        self.bench = bench
        self.stack: Stack = bench.stack
        self.seconds = bench.seconds
        self.pgbench = pgbench
        self.numbers = itertools.count()
        self.tool, self.left = "bench", 0
        self.project = UUID(bench.ask("GET", "/whoami")["project_id"])

    def supply(self, steps: int) -> str:
        """See that so many steps of one tool are ready in 64 sessions; return the tool.

        What a measure leaves over is there for the next.
        """
        missing = steps - self.left
        if missing > 0:
            self._make_steps(self.tool, missing)
            self.left += missing
        return self.tool

    def _make_steps(self, tool: str, steps: int) -> None:
        runs = max(SESSIONS, -(-steps // WINDOW))
        plan = [{"tool": tool, "depends_on": []}] * -(-steps // runs)
        body = {"agent": "bench", "steps": plan, "window": WINDOW}
        for _ in range(runs):
            named = body | {"session_key": f"{tool}-{next(self.numbers)}"}
            self.bench.ask("POST", "/runs", json.dumps(named).encode())

    def lives(self, workers: int, size: int, *, chained: bool = False) -> Measured:
        tool = self.supply(self._most(workers, size))
        work = Work(self.stack.key, tool, size, chained)
        whole = load(self.stack.port, workers, self.seconds, work)
        self.left -= len(whole.times) + workers * size
        return whole

    def pgbench_lives(self, clients: int, size: int, *, chained: bool = False) -> float:
        """The same statements without a server between: step lives a second."""
        most = self._most(clients, size, at_least_s=1)  # pgbench counts whole seconds
        names = {
            "project": self.project,
            "tool": self.supply(most),
            "digest": hashlib.sha256(b"null").hexdigest(),
        }
        claim = TURN.format(**names, max=size, ended="")
        complete = TURN.format(**names, max=0, ended=ENDED)
        both = TURN.format(**names, max=size, ended=ENDED)
        script = CHAINED if chained else APART
        # A claim may find nothing, others being at every session: count what was done.
        before = self._lived()
        self.pgbench.run(
            script.format(claim=claim, complete=complete, both=both),
            clients,
            {"number": 0},
        )
        lived = self._lived() - before
        self.left -= lived + clients * size
        return lived / self.pgbench.whole_seconds

    def _lived(self) -> int:
        with psycopg.connect(self.pgbench.url) as connection:
            found = connection.execute(
                "SELECT count(*) FROM agent_step_attempts WHERE project_id = %s",
                [self.project],
            ).fetchone()
        assert found is not None
        return int(found[0])

    def _most(self, workers: int, size: int, at_least_s: float = 0) -> int:
        """More steps than any measure will get through."""
        a_second = {1: (1_500, 8_000), 20: (8_000, 24_000)}[size][workers > 1]
        return int(max(self.seconds, at_least_s) * a_second)

    def back_to_work(self, lease_s: float, times: int) -> Measured:
        """From kill -9 of a worker until its step is handed to another."""
        measured = Measured()
        for _ in range(times):
            tool = f"killed-{next(self.numbers)}"
            self._make_steps(tool, 1)
            worker = self._start_worker(tool, lease_s)
            worker.kill()
            begun = time.perf_counter()
            worker.wait()
            self._claim_again(tool)
            measured.times.append(time.perf_counter() - begun)
        return measured

    def _start_worker(self, tool: str, lease_s: float) -> "subprocess.Popen[str]":
        url = f"http://127.0.0.1:{self.stack.port}"
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, url, self.stack.key, str(lease_s), tool],
            cwd=ROOT / "clients" / "python",
            stdout=subprocess.PIPE,
            text=True,
        )
        assert worker.stdout is not None
        if worker.stdout.readline() != "working\n":
            raise Failed("the worker did not begin")
        return worker

    def _claim_again(self, tool: str) -> None:
        """Claim, waiting, until a step comes whose attempt before was cut short."""
        wanted = {"worker": "b", "tools": [tool], "wait_s": 20, "max": 100}
        while True:
            body = json.dumps(wanted).encode()
            for step in self.bench.ask("POST", "/steps/claim", body)["steps"]:
                if step["previous"] == "unknown":
                    return
