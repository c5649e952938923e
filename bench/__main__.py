"""python -m bench: prints a table and keeps the figures in bench/results/."""

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any

from bench import browser, sockets
from bench.client import Measured
from bench.measures import Bench, event
from bench.people import signed_in
from bench.postgres import PgBench
from bench.recall_speed import measure_recall
from bench.stack import running
from bench.steps import StepBench

RESULTS = Path(__file__).resolve().parent / "results"
DOCS = RESULTS.parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


class Report:
    """Prints each figure as it comes and keeps it for the files."""

    def __init__(self) -> None:
        self.figures: dict[str, dict[str, float]] = {}
        self.sections: dict[str, list[str]] = {}

    def section(self, title: str) -> None:
        print(f"\n{title}", flush=True)
        self.sections[title] = []

    def note(self, name: str, **figures: float) -> None:
        self.figures[name] = {key: round(value, 3) for key, value in figures.items()}
        self.sections[list(self.sections)[-1]].append(name)
        shown = "  ".join(f"{k} {_shown(v)}" for k, v in figures.items())
        print(f"  {name:<44} {shown}", flush=True)

    def keep(self) -> Path:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / time.strftime("%Y%m%d-%H%M%S.json")
        path.write_text(json.dumps(self.figures, indent=1) + "\n")
        return path

    def write_docs(self) -> None:
        """Put the figures between the two marks of docs/benchmarks.md."""
        before, mark, rest = DOCS.read_text().partition(BEGIN)
        _, end, after = rest.partition(END)
        if not (mark and end):
            raise SystemExit(f"{DOCS.name} has no {BEGIN} and {END}")
        tables = "\n".join(self._table(title) for title in self.sections)
        DOCS.write_text(f"{before}{BEGIN}\n\n{tables}\n{END}{after}")

    def _table(self, title: str) -> str:
        rows = [self.figures[name] for name in self.sections[title]]
        columns = list(dict.fromkeys(column for row in rows for column in row))
        lines = [
            f"### {title[0].upper()}{title[1:]}",
            "",
            "| | " + " | ".join(c.replace("_", " ") for c in columns) + " |",
            "|---" * (len(columns) + 1) + "|",
        ]
        for name, row in zip(self.sections[title], rows, strict=True):
            cells = [_shown(row[c]) if c in row else "" for c in columns]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        return "\n".join([*lines, ""])


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=4, help="of each measure of throughput"
    )
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help="put the figures in docs/benchmarks.md",
    )
    parser.add_argument("--only", choices=["appends", "steps", "live", "recall"])
    parser.add_argument(
        "--wide-facts",
        type=int,
        default=100_000,
        help="of the project whose search is measured; 1000000 takes a while",
    )
    options = parser.parse_args()
    report = Report()
    begun = time.monotonic()
    print("starting the server", flush=True)
    with running() as stack:
        bench = Bench(stack, options.seconds)
        pgbench = PgBench(stack.database_url, options.seconds)
        bench.appends(4)  # so that nothing is done for the first time
        if options.only == "live":
            report.section("live (ms)")
            measure_sockets(bench, report)
        if options.only in (None, "appends"):
            measure_throughput(bench, pgbench, report)
            measure_flatness(bench, report)
        if options.only in (None, "steps"):
            measure_steps(StepBench(bench, pgbench), report)
        if options.only in (None, "recall"):
            measure_recall(stack, report, wide=options.wide_facts)
    print(f"\n{time.monotonic() - begun:.0f} seconds in all")
    path = report.keep()
    if options.write_docs:
        report.write_docs()
    print(f"kept in bench/results/{path.name}")


def measure_throughput(bench: Bench, pgbench: PgBench, report: Report) -> None:
    for clients in (1, 16):
        report.section(f"{clients} connection{'s' * (clients > 1)}, 64 sessions")
        insert = pgbench.insert(clients)
        report.note(f"pgbench: insert a row, {clients}", per_second=insert)
        counter = pgbench.counter(clients)
        report.note(f"pgbench: locked counter and row, {clients}", per_second=counter)
        three = pgbench.counter(clients, rows=3)
        report.note(f"pgbench: locked counter and 3 rows, {clients}", per_second=three)
        rates: dict[str, tuple[float, dict[str, Any]]] = {
            "append an event": (counter, {}),
            "append an event, Idempotency-Key": (counter, {"with_key": True}),
            "append a turn of 3": (three, {"turns": True}),
        }
        for name, (limit, how) in rates.items():
            found = bench.appends(clients, **how)
            report.note(
                f"{name}, {clients}",
                per_second=found.rate,
                **quantiles(found),
                of_pgbench=found.rate / limit,
            )
        batches = bench.appends(clients, events=100)
        report.note(
            f"append 100 events a call, {clients}",
            events_per_second=batches.rate * 100,
            **quantiles(batches),
        )
    report.section("16 connections, one session for all")
    limit = pgbench.counter(16, sessions=1)
    report.note("pgbench: locked counter and row, one", per_second=limit)
    found = bench.appends(16, one_session=True)
    report.note(
        "append an event, one session",
        per_second=found.rate,
        **quantiles(found),
        of_pgbench=found.rate / limit,
    )


def measure_flatness(bench: Bench, report: Report) -> None:
    long = bench.long_session()
    measure_context(bench, long, report)
    report.section("cost of an append: empty session, session of 100,000 events (ms)")
    for name, both in bench.flatness(long).items():
        for which, found in both.items():
            report.note(f"{name}, into {which}", **quantiles(found))
    report.section("reading (ms)")
    short = bench.new_session()
    bench.append(short, [{"type": "message.user", "payload": {"content": "x"}}] * 1000)
    for which, session in (("1,000", short), ("100,000", long)):
        found = bench.reads(f"/sessions/{session}/events?last=50", 300)
        report.note(f"newest 50 of {which}", **quantiles(found))
    report.note("load 1,000 events", **quantiles(bench.load_log(long, 1_000, 30)))
    report.note("load 10,000 events", **quantiles(bench.load_log(long, 10_000, 8)))
    report.section("live (ms)")
    report.note("append until streamed", **quantiles(bench.stream_delay(300)))
    measure_sockets(bench, report)


def measure_sockets(bench: Bench, report: Report) -> None:
    """200 sockets on ten sessions that get 200 events a second, each 20 times told."""
    url = f"http://127.0.0.1:{bench.stack.port}"
    heard = asyncio.run(
        sockets.measure(
            url, bench.stack.key, sockets=200, per_second=200, seconds=bench.seconds
        )
    )
    report.note(
        "written until at a socket, 200 sockets",
        p50_ms=heard.middle * 1000,
        p99_ms=heard.percentile(0.99) * 1000,
        lost=heard.lost,
    )
    measure_browser(bench, report)


def measure_browser(bench: Bench, report: Report) -> None:
    """The same with a page of one of these sessions open, where there is Chromium."""
    if browser.chromium() is None:
        return
    client = signed_in(bench.stack)
    cookies = dict(client.cookies)
    client.close()
    shown = asyncio.run(
        browser.measure(
            bench.stack.url,
            bench.stack.key,
            cookies,
            sockets=200,
            per_second=200,
            seconds=max(bench.seconds, 10),
        )
    )
    report.note(
        "written until in a browser's page, 200 sockets",
        p50_ms=shown.middle * 1000,
        p99_ms=shown.percentile(0.99) * 1000,
        lost=shown.lost,
    )


def measure_context(bench: Bench, long: str, report: Report) -> None:
    """What a model sees, of a short log and of a long one with the same messages."""
    short = bench.new_session()
    bench.append(short, [event(number) for number in range(1000)])
    report.section("context, openai form (ms)")
    for budget in (2_000, 8_000):
        found = {"1,000": Measured(), "100,000": Measured()}
        # By turns, so that noise falls on both.
        for _ in range(20):
            for which, session in (("1,000", short), ("100,000", long)):
                path = f"/sessions/{session}/context"
                path += f"?format=openai&budget_tokens={budget}"
                found[which].times += bench.reads(path, 5).times
        for which, each in found.items():
            report.note(f"{budget:,} tokens of {which} events", **quantiles(each))


def measure_steps(steps: StepBench, report: Report) -> None:
    for workers in (1, 16):
        report.section(f"steps: claim and complete, {workers} at work")
        for size, name in ((1, "one by one"), (20, "in lists of 20")):
            for chained in (False, True):
                how = f"{name}, claim_next" if chained else name
                limit = steps.pgbench_lives(workers, size, chained=chained)
                report.note(
                    f"pgbench: the same statements, {how}, {workers}", per_second=limit
                )
                found = steps.lives(workers, size, chained=chained)
                report.note(
                    f"step lives {how}, {workers}",
                    per_second=found.rate,
                    **quantiles(found),
                    of_pgbench=found.rate / limit,
                )
    report.section("from kill -9 until another has the step (ms)")
    report.note("lease of 2 s", **quantiles(steps.back_to_work(2, 5)))
    report.note("lease of 30 s", **quantiles(steps.back_to_work(30, 1)))


def quantiles(found: Measured) -> dict[str, float]:
    return {"p50_ms": found.quantile(0.5), "p99_ms": found.quantile(0.99)}


if __name__ == "__main__":
    main()
