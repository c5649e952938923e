"""Lists by cursor: nothing twice, nothing missed, nothing forged."""

import pytest
from django.db import connection
from hypothesis import given
from hypothesis import strategies as st

from access_app.models import AuditEntry
from access_app.services import record_audit
from agentstate.api.pagination import (
    BadCursor,
    decode_cursor,
    encode_cursor,
    paginate,
)
from tests.queries import CallQueries

URL = "/api/v1/audit"


def walk(rows, order, limit):
    pages, cursor = [], None
    while True:
        page = paginate(rows, {"limit": limit, "cursor": cursor}, order)
        pages.append([row.pk for row in page.items])
        cursor = page.next
        if cursor is None:
            return pages


@pytest.mark.parametrize(
    "order",
    [("id",), ("-id",), ("created_at", "id"), ("-created_at", "-id"), ("actor", "id")],
)
@pytest.mark.parametrize("limit", [1, 3, 7, 8, 100])
def test_pages_put_together_are_the_list(project, order, limit):
    # Entries of one actor are equal in the first column, so the second decides.
    for n in range(6):
        record_audit(project.id, f"actor-{n % 2}", "a.b", "c:1")
    rows = AuditEntry.objects.in_project(project.id)  # with project.created, seven
    pages = walk(rows, order, limit)
    assert sum(pages, []) == list(rows.order_by(*order).values_list("pk", flat=True))
    assert all(len(page) == limit for page in pages[:-1])
    assert pages[-1]


def test_a_row_that_comes_in_between_shifts_nothing(project):
    for _ in range(4):
        record_audit(project.id, "x", "a.b", "c:1")
    rows = AuditEntry.objects.in_project(project.id)
    order = ("-created_at", "-id")
    first = paginate(rows, {"limit": 2}, order)
    expected = list(rows.order_by(*order).values_list("pk", flat=True))
    record_audit(project.id, "x", "a.b", "c:1")
    second = paginate(rows, {"limit": 10, "cursor": first.next}, order)
    assert [row.pk for row in [*first.items, *second.items]] == expected


def test_a_page_is_read_from_its_index(project):
    rows = AuditEntry.objects.in_project(project.id)
    for _ in range(3):
        record_audit(project.id, "x", "a.b", "c:1")
    order = ("-created_at", "-id")
    cursor = paginate(rows, {"limit": 1}, order).next
    with connection.cursor() as sql:
        sql.execute("SET enable_seqscan = off")
        with CallQueries() as queries:
            paginate(rows, {"limit": 1, "cursor": cursor}, order)
        sql.execute("EXPLAIN " + queries.captured_queries[0]["sql"])
        plan = "\n".join(row[0] for row in sql.fetchall())
        sql.execute("RESET enable_seqscan")
    assert "access_audit_project_idx" in plan
    assert "ROW(created_at, id) <" in plan.split("Index Cond")[1].splitlines()[0]
    assert "Sort" not in plan


@pytest.mark.parametrize("cursor", ["x", "x.y", "WzFd.bad", "%00", "é", None])
def test_a_cursor_that_was_not_handed_out_is_422(api, cursor):
    if cursor is None:
        cursor = encode_cursor("another list", ["a", "b"])
    answer = api.get(URL, params={"cursor": cursor})
    assert (answer.status_code, answer.json["code"]) == (422, "bad_cursor")
    assert answer.json["errors"][0]["path"] == "cursor"


def test_a_changed_cursor_is_422(api, project):
    for _ in range(2):
        record_audit(project.id, "x", "a.b", "c:1")
    cursor = api.get(URL, params={"limit": 1}).json["next"]
    for place in (0, len(cursor) // 2, len(cursor) - 1):
        other = "A" if cursor[place] != "A" else "B"
        forged = cursor[:place] + other + cursor[place + 1 :]
        answer = api.get(URL, params={"cursor": forged})
        assert answer.json["code"] == "bad_cursor", place


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "x", "1.5", "", "9" * 30])
def test_a_limit_is_1_to_1000(api, limit):
    answer = api.get(URL, params={"limit": limit})
    assert answer.status_code == 422
    assert answer.json["errors"][0]["path"] == "limit"


def test_a_parameter_given_twice_is_422(api):
    answer = api.get(f"{URL}?limit=1&limit=2")
    assert (answer.status_code, answer.json["code"]) == (422, "repeated_parameter")


@given(st.lists(st.text() | st.integers(-(2**63), 2**63), min_size=1, max_size=3))
def test_a_cursor_gives_back_what_it_holds(values):
    assert decode_cursor("s", encode_cursor("s", values)) == values
    with pytest.raises(BadCursor):
        decode_cursor("other", encode_cursor("s", values))
    with pytest.raises(BadCursor):
        decode_cursor("s", encode_cursor("s", values), len(values) + 1)
