"""python -m bench.sizes: fills the tables by SQL, then times each page and list.

A million runs and ten million events by default, which takes a while and about 10 GB;
--runs and --events make it smaller. What is timed is a whole request from this process,
so it is more than the time in the server.
"""

import argparse
import re
import statistics
import time
from typing import Any, NamedTuple

import httpx
import psycopg

from bench.people import signed_in
from bench.stack import Stack, running

EVENTS_A_SESSION = 50
CHUNK = 200_000
REPEATS = 7
TARGET_MS = 100

# A row is made once for all its columns: `(f(x)).*` would make it for each.
# An id of the kind that the server makes, for a moment in the last 30 days.
ID = """(lpad(to_hex((extract(epoch FROM {at}) * 1000)::bigint), 12, '0')
  || '7' || substr(md5({salt} || n.n), 1, 3)
  || '8' || substr(md5({salt} || n.n), 4, 15))::uuid"""
AT = "(now() - interval '30 days' * (1 - n.n::float / %(total)s))"

SESSIONS = f"""
INSERT INTO agent_sessions SELECT made.*
FROM agent_sessions t, generate_series(%(first)s::bigint, %(last)s) AS n(n)
CROSS JOIN LATERAL jsonb_populate_record(t, jsonb_build_object(
  'id', {ID.format(at=AT, salt="'s'")}, 'key', 'key-' || n.n, 'title', 'Order ' || n.n,
  'agent', 'agent-' || n.n %% 20, 'subject', 'u-' || n.n %% 10000,
  'labels', jsonb_build_object('team', 'team-' || n.n %% 100),
  'last_seq', {EVENTS_A_SESSION - 1}, 'created_at', {AT}, 'updated_at', {AT},
  'active_at', {AT})) AS made
WHERE t.id = %(template)s
"""
# Every 500th failed, every 1,000th waits, every 5,000th has a step that retries.
RUNS = f"""
INSERT INTO agent_runs SELECT made.*
FROM agent_runs t, generate_series(%(first)s::bigint, %(last)s) AS n(n)
JOIN bench_order s ON s.n = n.n %% %(sessions)s
CROSS JOIN LATERAL jsonb_populate_record(t, jsonb_build_object(
  'id', {ID.format(at=AT, salt="'r'")}, 'key', 'run-' || n.n,
  'session_id', s.id, 'agent', 'agent-' || n.n %% 20,
  'state', CASE WHEN n.n %% 1000 = 0 THEN 'waiting' WHEN n.n %% 500 = 0 THEN 'failed'
           ELSE 'succeeded' END,
  'n_retrying', (n.n %% 5000 = 0)::int,
  'labels', jsonb_build_object('team', 'team-' || n.n %% 100),
  'created_at', {AT}, 'started_at', {AT}, 'state_since', {AT},
  'ended_at', CASE WHEN n.n %% 1000 <> 0 THEN {AT} + interval '3 s' END)) AS made
WHERE t.id = %(template)s
"""
EVENTS = f"""
INSERT INTO agent_events (project_id, session_id, seq, event_id, type, payload,
  payload_bytes, actor, created_at, gen, xid)
SELECT t.project_id, s.id, (n.n - 1) %% {EVENTS_A_SESSION},
  {ID.format(at=AT, salt="'e'")},
  (ARRAY['message.user', 'tool.call', 'tool.result', 'reasoning'])[1 + n.n %% 4],
  ('{{"content":"number ' || n.n || ' {"x" * 120}",'
   '"name":"find","tool_call_id":"c"}}')::json,
  180, 'key:bench', {AT}, t.gen, t.xid
FROM agent_events t, generate_series(%(first)s::bigint, %(last)s) AS n(n)
JOIN bench_order s ON s.n = (n.n - 1) / {EVENTS_A_SESSION}
WHERE t.id = %(template)s
"""
# A fact has a revision, in the same transaction: a trigger sees to it.
FACTS = f"""
WITH added AS (
  INSERT INTO agent_memory SELECT made.*
  FROM agent_memory t, generate_series(%(first)s::bigint, %(last)s) AS n(n)
  CROSS JOIN LATERAL jsonb_populate_record(t, jsonb_build_object(
    'id', {ID.format(at=AT, salt="'f'")}, 'subject', 'u-' || n.n %% 10000,
    'fact', 'Likes number ' || n.n,
    'content_hash', '\\x' || md5(n.n::text) || md5(n.n::text), 'status',
    CASE WHEN n.n %% 1000 = 0 THEN 'proposed' ELSE 'active' END,
    'created_at', {AT}, 'updated_at', {AT})) AS made
  WHERE t.id = %(template)s
  RETURNING project_id, subject, id, version, created_at)
INSERT INTO agent_memory_revisions
  (project_id, subject, memory_id, version, action, changes, actor, reason, created_at)
SELECT project_id, subject, id, version, 'remembered', '{{}}', 'bench', '', created_at
FROM added
"""
SUBJECTS = """
INSERT INTO agent_memory_subjects (project_id, subject, version, erased_version)
SELECT %s, 'u-' || n, 1, 0 FROM generate_series(0, 9999) n
"""
AUDIT = f"""
INSERT INTO access_audit SELECT made.*
FROM access_audit t, generate_series(%(first)s::bigint, %(last)s) AS n(n)
CROSS JOIN LATERAL jsonb_populate_record(t, jsonb_build_object(
  'id', {ID.format(at=AT, salt="'a'")}, 'actor', 'user:u-' || n.n %% 50,
  'action', 'memory.corrected', 'object', 'memory:' || n.n, 'created_at', {AT})) AS made
WHERE t.id = %(template)s
"""


class Templates(NamedTuple):
    """Real rows, made over the API, that the many are like."""

    project: Any
    session: str
    run: str
    event: int
    fact: str
    audit: Any


class Filler:
    def __init__(self, stack: Stack) -> None:
        self.sessions = 0
        self.db = psycopg.connect(stack.database_url, autocommit=True)
        self.db.execute("SET synchronous_commit = off")
        headers = {"Authorization": f"Bearer {stack.key}"}
        self.api = httpx.Client(
            base_url=f"{stack.url}/api/v1", headers=headers, timeout=120
        )

    def fill(self, runs: int, events: int) -> Templates:
        made = self._templates()
        self.sessions = max(events // EVENTS_A_SESSION, 1)
        self._many(SESSIONS, self.sessions, made.session)
        self._number_sessions(made.project)
        self._many(RUNS, runs, made.run)
        self._many(EVENTS, events, made.event)
        self._many(FACTS, max(runs // 10, 10), made.fact)
        self.db.execute(SUBJECTS, [made.project])
        self._many(AUDIT, max(runs // 5, 10), made.audit)
        self.db.execute("DROP TABLE bench_order")
        self.db.execute("VACUUM ANALYZE")
        return made

    def _number_sessions(self, project: Any) -> None:
        self.db.execute(
            "CREATE UNLOGGED TABLE bench_order AS"
            " SELECT row_number() OVER (ORDER BY id) - 1 AS n, id"
            " FROM agent_sessions WHERE project_id = %s AND key LIKE 'key-%%'",
            [project],
        )
        self.db.execute("CREATE UNIQUE INDEX ON bench_order (n) INCLUDE (id)")
        self.db.execute("ANALYZE bench_order")

    def _templates(self) -> Templates:
        session = self._post("sessions", {"key": "template", "subject": "template"})
        event = {"type": "message.user", "payload": {"content": "the first"}}
        self._post(f"sessions/{session['id']}/events", {"events": [event]})
        run = self._post("runs", {"session": session["id"], "steps": [{"tool": "a"}]})
        fact = self._post("memory", {"subject": "template", "fact": "Likes templates"})
        row = self.db.execute(
            "SELECT project_id, id FROM agent_events WHERE session_id = %s AND seq = 1",
            [session["id"]],
        ).fetchone()
        assert row is not None
        audit = self.db.execute(
            "SELECT id FROM access_audit WHERE project_id = %s LIMIT 1", [row[0]]
        ).fetchone()
        assert audit is not None
        return Templates(row[0], session["id"], run["id"], row[1], fact["id"], audit[0])

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.api.post(f"/{path}", json=body)
        answer.raise_for_status()
        told: dict[str, Any] = answer.json()
        return told

    def _many(self, statement: str, total: int, template: Any) -> None:
        begun = time.monotonic()
        for first in range(1, total + 1, CHUNK):
            last = min(first + CHUNK - 1, total)
            values = {"first": first, "last": last, "total": total}
            values |= {"template": template, "sessions": self.sessions}
            self.db.execute(statement, values)
        [table] = re.findall(r"INSERT INTO (\w+)", statement)[:1]
        print(f"  {total:>12,} rows of {table} ({time.monotonic() - begun:.0f} s)")


def addresses(made: Templates, some_session: str, some_run: str) -> dict[str, str]:
    page, admin, api = "/p/bench/", "/admin/", "/api/v1/"
    return {
        "overview": page,
        "runs": f"{page}runs/",
        "runs waiting": f"{page}runs/?state=waiting",
        "runs active (five states)": f"{page}runs/?state=queued&state=running"
        "&state=waiting&state=paused&state=cancelling",
        "runs failed": f"{page}runs/?state=failed",
        "runs retrying": f"{page}runs/?retrying=1",
        "runs of an agent": f"{page}runs/?agent=agent-7",
        "runs of no agent": f"{page}runs/?agent=nobody",
        "runs of a label": f"{page}runs/?label=team:team-7",
        "runs failed of a label": f"{page}runs/?state=failed&label=team:team-0",
        "run by its key": f"{page}runs/?q=run-77",
        "run by no key": f"{page}runs/?q=no-such-run",
        "run": f"{page}runs/{some_run}/",
        "inbox": f"{page}inbox/",
        "workers": f"{page}workers/",
        "sessions": f"{page}sessions/",
        "sessions of a subject": f"{page}sessions/?subject=u-77",
        "sessions by title": f"{page}sessions/?q=Order+777",
        "sessions by no title": f"{page}sessions/?q=zzzzzz",
        "sessions of a label": f"{page}sessions/?label=team:team-7",
        "sessions of 7 days": f"{page}sessions/?hours=168",
        "session": f"{page}sessions/{some_session}/",
        "what a model would see": f"{page}sessions/{some_session}/context/",
        "search, a word": f"{page}search/?q=number",
        "search, no such word": f"{page}search/?q=zzzzzz",
        "search, 24 hours": f"{page}search/?hours=24",
        "subjects": f"{page}memory/",
        "facts to review": f"{page}memory/?view=review",
        "facts by text": f"{page}memory/?view=facts&q=number+7",
        "facts of a subject": f"{page}memory/subject/?subject=u-77",
        "audit": f"{page}audit/",
        "audit of one person": f"{page}audit/?actor=user:u-7",
        "audit of nobody": f"{page}audit/?actor=user:nobody",
        "settings": f"{page}settings/",
        "admin: sessions": f"{admin}sessions_app/session/",
        "admin: a session's events": f"{admin}sessions_app/event/?q={some_session}",
        "admin: events": f"{admin}sessions_app/event/",
        "admin: runs": f"{admin}runs_app/run/",
        "admin: runs failed": f"{admin}runs_app/run/?state__exact=failed",
        "admin: facts": f"{admin}memory_app/fact/",
        "admin: facts, page 3": f"{admin}memory_app/fact/?p=3",
        "admin: audit": f"{admin}access_app/auditentry/",
        "API: runs": f"{api}runs",
        "API: run by key": f"{api}runs?key=run-77",
        "API: sessions": f"{api}sessions",
        "API: feed, newest": f"{api}events?limit=50",
        "API: tree of a run": f"{api}runs/{some_run}/tree",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--events", type=int, default=10_000_000)
    options = parser.parse_args()
    with running() as stack:
        print("filling", flush=True)
        filler = Filler(stack)
        made = filler.fill(options.runs, options.events)
        row = filler.db.execute(
            "SELECT r.session_id, r.id FROM agent_runs r WHERE r.project_id = %s"
            " AND r.key = 'run-7'",
            [made.project],
        ).fetchone()
        assert row is not None
        print(f"each {REPEATS} times, in ms: middle and longest", flush=True)
        client = signed_in(stack)
        slow = timed(client, stack, addresses(made, str(row[0]), str(row[1])))
        client.close()
    print(f"{len(slow)} took more than {TARGET_MS} ms: {', '.join(slow) or 'none'}")


def timed(client: httpx.Client, stack: Stack, pages: dict[str, str]) -> list[str]:
    key = {"Authorization": f"Bearer {stack.key}"}
    slow = []
    for name, path in pages.items():
        headers = key if path.startswith("/api/") else {}
        took = []
        for _ in range(REPEATS):
            begun = time.perf_counter()
            answer = client.get(path, headers=headers)
            took.append((time.perf_counter() - begun) * 1000)
            if not re.match(r"2..", str(answer.status_code)):
                raise SystemExit(f"{path}: {answer.status_code} {answer.text[:300]}")
        middle = statistics.median(took)
        if middle > TARGET_MS:
            slow.append(name)
        print(f"  {name:<28} {middle:>8.1f} {max(took):>8.1f}", flush=True)
    return slow


if __name__ == "__main__":
    main()
