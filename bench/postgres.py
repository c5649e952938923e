"""What Postgres alone does with rows of the same shape: pgbench, same database."""

import os
import re
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from agentstate.embedded import POSTGRES_BIN

SESSIONS = 64
TABLES = """
DROP TABLE IF EXISTS bench_rows, bench_sessions;
CREATE TABLE bench_rows (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, session integer NOT NULL,
    seq bigint NOT NULL, event_id uuid NOT NULL DEFAULT gen_random_uuid(),
    type text NOT NULL, payload json NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (session, seq), UNIQUE (session, event_id)
);
CREATE TABLE bench_sessions (
    id integer PRIMARY KEY, last_seq bigint NOT NULL
) WITH (fillfactor = 70);
INSERT INTO bench_sessions SELECT n, 0 FROM generate_series(1, 64) AS n;
"""
PAYLOAD = '{"content": "' + "x" * 135 + '"}'
# Numbers far apart: clients of pgbench know nothing of each other.
INSERT = f"""
\\set session random(1, 1000000000)
\\set seq random(1, 9000000000000)
INSERT INTO bench_rows (session, seq, type, payload)
VALUES (:session, :seq, 'message.user', '{PAYLOAD}');
"""
COUNTER = f"""
\\set session random(1, :sessions)
WITH head AS (
    UPDATE bench_sessions SET last_seq = last_seq + :rows WHERE id = :session
    RETURNING id, last_seq
)
INSERT INTO bench_rows (session, seq, type, payload)
SELECT head.id, head.last_seq - :rows + n, 'message.user', '{PAYLOAD}'
FROM head, generate_series(1, :rows) AS n;
"""


class PgBench:
    """Runs scripts against `database_url`; figures are transactions a second."""

    def __init__(self, database_url: str, seconds: float) -> None:
        self.url = database_url
        self.seconds = seconds
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(TABLES)

    @property
    def whole_seconds(self) -> int:
        """How long a script runs."""
        return max(1, round(self.seconds))

    def insert(self, clients: int) -> float:
        """Single-row inserts."""
        return self.run(INSERT, clients, {})

    def counter(
        self, clients: int, *, rows: int = 1, sessions: int = SESSIONS
    ) -> float:
        """A row-locked counter and the insert of `rows`, in one statement."""
        return self.run(COUNTER, clients, {"rows": rows, "sessions": sessions})

    def run(self, script: str, clients: int, variables: dict[str, int]) -> float:
        """Run a script over and over; return how often a second."""
        parts = urlsplit(self.url)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "script.sql"
            path.write_text(script)
            command = [
                *[str(POSTGRES_BIN / "pgbench"), "--no-vacuum", "-M", "prepared"],
                *["-f", str(path), "-c", str(clients), "-j", str(min(clients, 2))],
                *[f"-D{name}={value}" for name, value in variables.items()],
                *["-T", str(self.whole_seconds)],
                *["-h", "127.0.0.1", "-p", str(parts.port), "-U", str(parts.username)],
                parts.path.lstrip("/"),
            ]
            done = subprocess.run(
                command,
                env=os.environ | {"PGPASSWORD": str(parts.password)},
                capture_output=True,
                text=True,
            )
        found = re.search(r"tps = ([0-9.]+) \(without", done.stdout)
        if found is None:
            raise RuntimeError(f"pgbench: {done.stdout[-500:]} {done.stderr[-1000:]}")
        return float(found[1])
