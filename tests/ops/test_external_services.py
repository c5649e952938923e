"""Services of one's own instead of the embedded ones, each by itself."""

import os

import psycopg

from tests import services


def test_an_external_postgres_replaces_the_embedded_one(supervise):
    name = f"external_{os.getpid()}"
    url = services.another_database(name)
    served = supervise(DATABASE_URL=url)
    served.start()
    with served.client(served.key) as http:
        assert http.post("/api/v1/sessions", json={"agent": "a"}).status_code == 201
    assert not (served.data_dir / "postgres").exists()
    assert (served.data_dir / "valkey").exists()
    assert served.stop() == 0
    with psycopg.connect(services.admin_url(name)) as connection:
        [count] = connection.execute("SELECT count(*) FROM agent_sessions").fetchone()
    assert count == 1


def test_a_postgres_that_is_not_there_is_said_plainly(supervise):
    served = supervise(
        DATABASE_URL="postgresql://someone:hidden@127.0.0.1:1/none",
        REDIS_URL="redis://127.0.0.1:1/0",
    )
    served.launch()
    assert served.process.wait(120) != 0
    assert "Postgres cannot be used" in served.err
    assert "Traceback" not in served.err and "hidden" not in served.err
