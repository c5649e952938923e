"""What tests begin with, made as a client makes it: over the API."""

from typing import Any
from uuid import uuid4

from django.db import connection

from tests.fixtures import Answer, Api

SESSIONS = "/api/v1/sessions"
MISSING = "0199b2a0-0000-7000-8000-000000000000"  # an id that nothing has


class SessionApi:
    """One session over the API. `url` is its address; the calls answer like Api's."""

    def __init__(self, api: Api, id_: str) -> None:
        self.api = api
        self.id = id_
        self.url = f"{SESSIONS}/{id_}"

    def append(self, *events: Any, **options: Any) -> Answer:
        """Append events; a plain string is a user's message."""
        body = {"events": [says(e) if isinstance(e, str) else e for e in events]}
        if "expected_seq" in options:
            body["expected_seq"] = options.pop("expected_seq")
        return self.api.post(f"{self.url}/events", body, **options)

    def events(self, **params: Any) -> list[Any]:
        answer = self.api.get(f"{self.url}/events", params=params)
        assert answer.status_code == 200, answer
        return list(answer.json["items"])

    def payloads(self, **params: Any) -> list[Any]:
        return [event["payload"] for event in self.events(**params)]

    def texts(self) -> list[str]:
        return [event["payload"]["content"] for event in self.events(limit=1000)]

    def get(self, path: str = "", **params: Any) -> Any:
        answer = self.api.get(self.url + path, params=params)
        assert answer.status_code == 200, answer
        return answer.json

    def put_state(self, state: Any, version: int | None, **options: Any) -> Answer:
        body = {"state": state}
        if version is not None:
            body["expected_version"] = version
        return self.api.put(f"{self.url}/state", body, **options)

    def patch_state(self, version: int | None = None, **body: Any) -> Answer:
        if version is not None:
            body["expected_version"] = version
        return self.api.patch(f"{self.url}/state", body)

    def open_calls(self, at_seq: int | None = None) -> list[tuple[int, str]]:
        if at_seq is None:
            at_seq = self.get()["last_seq"]
        calls = self.get("/replay", at_seq=at_seq)["open_tool_calls"]
        return [(call["seq"], call["tool_call_id"]) for call in calls]

    def fork(self, at_seq: int, **fields: Any) -> "SessionApi":
        answer = self.api.post(f"{self.url}/fork", {"at_seq": at_seq, **fields})
        assert answer.status_code == 201, answer
        return SessionApi(self.api, answer.json["id"])


def make_session(api: Api, **fields: Any) -> SessionApi:
    answer = api.post(SESSIONS, fields)
    assert answer.status_code == 201, answer
    return SessionApi(api, answer.json["id"])


def says(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message.user", "payload": {"content": text}, **fields}


def calls(id_: str, name: str = "search", **payload: Any) -> dict[str, Any]:
    return {
        "type": "tool.call",
        "payload": {"tool_call_id": id_, "name": name, "arguments": {}, **payload},
    }


def answers(id_: str, content: Any = "ok", **payload: Any) -> dict[str, Any]:
    return {
        "type": "tool.result",
        "payload": {"tool_call_id": id_, "content": content, **payload},
    }


def key_header(key: str | None = None) -> dict[str, str]:
    return {"Idempotency-Key": key or str(uuid4())}


def error_of(answer: Answer) -> tuple[int, str, str | None]:
    """Status, code, and the path of the first error item."""
    items = answer.json.get("errors") or [{}]
    return answer.status_code, answer.json["code"], items[0].get("path")


# %s of them to session %s, by the function that the server calls.
APPEND_FILLER = """
SELECT agentstate_append_events(
    s.project_id, s.id, array_agg(gen_random_uuid()), array_agg(false),
    array_agg('acme.x'::text), array_agg('{"content":"x"}'::text),
    array_agg(NULL::uuid), array_agg(NULL::uuid), array_agg(NULL::timestamptz),
    NULL, NULL, NULL, NULL, 'test', false, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 24)
FROM generate_series(1, %s), agent_sessions s
WHERE s.id = %s
GROUP BY s.project_id, s.id
"""


def fetch(sql: str, *values: Any) -> Any:
    """The rows of one query, past the ORM."""
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchall() if cursor.description else None


def buffers(sql: str, *values: Any) -> int:
    """How many pages of Postgres the statement touches, its functions included.

    It is run, in a transaction that is rolled back, five times, and the fewest count:
    plans and catalogs are then known, as they are on a connection that is in use, and
    no vacuum has just made them be read anew.
    """
    from django.db import transaction

    counts = []
    for _ in range(5):
        with transaction.atomic():
            [(plan,)] = fetch(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", *values)
            transaction.set_rollback(True)
        top = plan[0]["Plan"]
        counts.append(top["Shared Hit Blocks"] + top["Shared Read Blocks"])
    return min(counts)


def plan_of(queryset: Any) -> str:
    return str(queryset.explain())
