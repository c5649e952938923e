"""Writers that hold their transactions open as they are told, past the API."""

import random
import threading
from collections.abc import Callable, Sequence
from uuid import UUID

import psycopg
from django.conf import settings
from django.db import connection

APPEND = """
SELECT (agentstate_append_events(
    %s, %s, ARRAY[gen_random_uuid()], ARRAY[false], ARRAY[%s]::text[],
    ARRAY[%s]::text[], ARRAY[NULL]::uuid[], ARRAY[NULL]::uuid[],
    ARRAY[NULL]::timestamptz[], NULL, NULL, NULL, NULL, 'writer', false, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, 24)).outcome
"""


class Writer:
    """One connection of its own. Nothing is committed but by `commit`."""

    def __init__(self, project_id: UUID) -> None:
        self.project_id = project_id
        self.connection = psycopg.connect(settings.DATABASE_URL)

    def append(self, session_id: str, text: str, type_: str = "acme.written") -> None:
        outcome = self.connection.execute(
            APPEND, [self.project_id, session_id, type_, f'{{"content":"{text}"}}']
        ).fetchone()
        assert outcome == ("appended",)

    def append_in_savepoint(self, session_id: str, text: str, *, keep: bool) -> None:
        self.connection.execute("SELECT")  # begins the transaction, if none is open
        with self.connection.transaction(force_rollback=not keep):
            self.append(session_id, text)

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def close(self) -> None:
        self.connection.close()


def write_at_random(
    project_id: UUID, sessions: Sequence[str], name: str, rounds: int
) -> int:
    """Write `rounds` transactions, one in ten rolled back; return the events kept.

    Some append twice, some in savepoints, half of those rolled back. The seed is the
    name, so that a failure can be had again.
    """
    chance = random.Random(name)
    writer = Writer(project_id)
    kept = 0
    try:
        for number in range(rounds):
            # In one order, so that no two writers wait for each other.
            chosen = sorted(chance.sample(sessions, min(len(sessions), 2)))
            added = 0
            for session_id in chosen[: chance.choice([1, 1, 2])]:
                if chance.random() < 0.2:
                    keep = chance.random() < 0.5
                    writer.append_in_savepoint(
                        session_id, f"{name}-{number}", keep=keep
                    )
                    added += keep
                else:
                    writer.append(session_id, f"{name}-{number}")
                    added += 1
            if chance.random() < 0.1:
                writer.rollback()
            else:
                writer.commit()
                kept += added
    finally:
        writer.close()
    return kept


def run_all(jobs: Sequence[Callable[[], None]]) -> None:
    """Run the jobs at one moment, each in a thread; raise what one of them raised."""
    barrier = threading.Barrier(len(jobs))
    failures: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            barrier.wait(60)
            job()
        except BaseException as exc:
            failures.append(exc)
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
