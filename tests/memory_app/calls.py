"""The memory calls as tests use them, and a look into everything that is stored."""

import json
from pathlib import Path

import redis as redis_client
from django.conf import settings
from django.db import connection

SUBJECT = "u-100"


def remember(api, fact, subject=SUBJECT, headers=None, **fields):
    answer = api.post(
        "/api/v1/memory", {"subject": subject, "fact": fact, **fields}, headers=headers
    )
    assert answer.status_code in (200, 201), answer
    return answer.json


def recall(api, q="", subject=SUBJECT, **params):
    answer = api.get(
        "/api/v1/memory/recall", params={"subject": subject, "q": q, **params}
    )
    assert answer.status_code == 200, answer
    return answer.json["items"]


def texts(items):
    return [item["fact"] for item in items]


def facts(api, subject=SUBJECT, **params):
    answer = api.get("/api/v1/memory", params={"subject": subject, **params})
    assert answer.status_code == 200, answer
    return answer.json["items"]


def forget(api, fact_id, **body):
    answer = api.post(f"/api/v1/memory/{fact_id}/forget", body)
    assert answer.status_code == 200, answer
    return answer.json


def open_session(api, subject=SUBJECT, **fields):
    answer = api.post("/api/v1/sessions", {"subject": subject, **fields})
    assert answer.status_code in (200, 201), answer
    return answer.json["id"]


def append(api, session, *events):
    answer = api.post(
        f"/api/v1/sessions/{session}/events",
        {"events": [{"type": t, "payload": p} for t, p in events]},
    )
    assert answer.status_code == 201, answer
    return [event["seq"] for event in answer.json["events"]]


def say(api, session, *contents, role="user"):
    return append(
        api, session, *((f"message.{role}", {"content": c}) for c in contents)
    )


def upload_file(api, session, data, name, metadata=None):
    answer = api.request(
        "POST",
        f"/api/v1/sessions/{session}/artifacts",
        data=data,
        content_type="text/plain",
        params={"name": name, "metadata": json.dumps(metadata or {})},
    )
    assert answer.status_code == 201, answer
    return answer.json["id"]


def close(api, session):
    answer = api.post(f"/api/v1/sessions/{session}/close", {})
    assert answer.status_code == 200, answer
    return answer.json


def places_with(text):
    """Every column, Redis key and file of the data folder that holds `text`."""
    return [*_columns_with(text), *_keys_with(text), *_files_with(text)]


def _columns_with(text):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, column_name FROM information_schema.columns"
            " JOIN information_schema.tables USING (table_schema, table_name)"
            " WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
        )
        for table, column in cursor.fetchall():
            cursor.execute(
                f'SELECT 1 FROM "{table}" WHERE position(lower(%s) IN'
                f' lower("{column}"::text)) > 0 LIMIT 1',
                [text],
            )
            if cursor.fetchone():
                yield f"{table}.{column}"


def _keys_with(text):
    client = redis_client.Redis.from_url(settings.REDIS_URL)
    wanted = text.lower().encode()
    for key in client.scan_iter(count=1000):
        raw = client.dump(key) or b""
        if wanted in key.lower() or wanted in raw.lower():
            yield f"redis:{key!r}"


def _files_with(text):
    wanted = text.encode()
    services = {"postgres", "valkey", "logs"}  # looked at through themselves
    for path in Path(settings.DATA_DIR).rglob("*"):
        parts = set(path.relative_to(settings.DATA_DIR).parts)
        if path.is_file() and not services & parts and wanted in path.read_bytes():
            yield f"file:{path}"
