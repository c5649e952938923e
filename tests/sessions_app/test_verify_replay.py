"""verify_replay: what the log says, row by row, and every kind of damage found."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from agentstate import codec
from agentstate.ids import new_id
from sessions_app import projection
from sessions_app.append import NewEvent, append_events
from sessions_app.forking import fork_session
from sessions_app.models import Session, ToolCall
from sessions_app.projection import Difference, differences_of
from sessions_app.replay import open_calls_at, state_at
from sessions_app.services import (
    SessionFields,
    close_session,
    create_session,
    erase_session,
    reopen_session,
    update_session,
    write_state,
)


class RolledBack(Exception):
    """Ends a block whose damage must not stay."""


@contextmanager
def damage() -> Iterator[Callable[..., None]]:
    """damage("UPDATE …", …) as the tables' owner could; rolled back at the end."""

    def run(sql: str, *values: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(sql, values)

    try:
        with transaction.atomic():
            run("ALTER TABLE agent_events DISABLE TRIGGER event_append_only")
            yield run
            raise RolledBack
    except RolledBack:
        pass


def append(session: Session, *events: tuple[str, dict[str, Any]]) -> None:
    append_events(
        session.project_id,
        session.pk,
        [NewEvent(type=name, payload=payload) for name, payload in events],
        actor="test",
    )


@pytest.fixture
def session(project: Any) -> Session:
    """A session with something of everything."""
    made, _ = create_session(
        project.id,
        SessionFields(
            key=f"k-{new_id()}", agent="a", subject="u-1", labels={"lang": "fr"}
        ),
        state={"cart": ["a", "b"], "step": 1},
    )
    append(
        made,
        ("message.user", {"content": "hi \0 there"}),
        ("message.assistant", {"content": None}),
        ("tool.call", {"tool_call_id": "c", "name": "f", "arguments": "{}"}),
        ("tool.call", {"tool_call_id": "c", "name": "g"}),
        ("tool.result", {"tool_call_id": "c", "content": "gone", "synthetic": True}),
        ("tool.result", {"tool_call_id": "c", "content": 1}),
        ("tool.result", {"tool_call_id": "nobody", "content": 1}),
    )
    for version in range(1, 4):
        write_state(
            made.project_id,
            made.pk,
            {"cart": ["a"] * version, "note": str(version) * 6000, "big": 10**30},
            expected_version=version,
            actor="test",
        )
    update_session(
        made.project_id, made.pk, {"title": "T", "labels": {"lang": "de"}}, actor="t"
    )
    close_session(made.project_id, made.pk, actor="t", reason="done")
    made.refresh_from_db()
    return made


def paths(session: Session) -> list[str]:
    return [d.path for d in differences_of(session.project_id, session.pk)]


def test_a_session_equals_what_its_log_says(session: Session) -> None:
    assert paths(session) == []


def test_a_reopened_session_equals_its_log(session: Session) -> None:
    reopen_session(session.project_id, session.pk, actor="t")
    update_session(session.project_id, session.pk, {"title": ""}, actor="t")
    assert paths(session) == []


@pytest.mark.parametrize("at_seq", [0, 1, 4, 5, 6, 8, 10, 12])
def test_a_fork_equals_what_the_shared_log_says(session: Session, at_seq: int) -> None:
    fork = fork_session(
        session.project_id, session.pk, at_seq, SessionFields(), actor="t"
    )
    append(
        fork,
        ("message.user", {"content": "another way"}),
        ("tool.result", {"tool_call_id": "c", "content": 2}),
    )
    write_state(
        fork.project_id, fork.pk, {"a": 1}, expected_version=fork.version, actor="t"
    )
    assert paths(fork) == []
    grandchild = fork_session(
        fork.project_id, fork.pk, at_seq + 2, SessionFields(), actor="t"
    )
    append(grandchild, ("tool.result", {"tool_call_id": "c", "content": 3}))
    assert paths(grandchild) == []
    erase_session(session.project_id, session.pk, actor="t")
    assert paths(fork) == []
    erase_session(fork.project_id, fork.pk, actor="t")
    assert paths(grandchild) == []


SESSION = "UPDATE agent_sessions SET {} WHERE id = %s"


@pytest.mark.parametrize(
    ("sql", "path"),
    [
        (SESSION.format("title = 'other'"), "title"),
        (SESSION.format("status = 'open'"), "status"),
        (SESSION.format("closed_at = NULL"), "closed_at"),
        (SESSION.format("""labels = '{"lang": "fr"}'"""), "labels/lang"),
        (SESSION.format("""metadata = '{"a": 1}'"""), "metadata/a"),
        (SESSION.format("agent = 'b'"), "agent"),
        (SESSION.format("subject = 'u-2'"), "subject"),
        (SESSION.format("key = NULL"), "key"),
        (SESSION.format("last_seq = last_seq + 1"), "last_seq"),
        (SESSION.format("last_seq = last_seq - 1"), "last_seq"),
        (SESSION.format("version = version + 1"), "version"),
        (SESSION.format("log_bytes = log_bytes + 1"), "log_bytes"),
        (SESSION.format("snapshot_version = 0"), "snapshot_version"),
        (SESSION.format("patch_bytes = 7"), "patch_bytes"),
        (SESSION.format("updated_at = updated_at - interval '1 s'"), "updated_at"),
        (SESSION.format("active_at = active_at - interval '1 h'"), "active_at"),
        (
            "UPDATE agent_tool_calls SET result_seq = NULL"
            " WHERE session_id = %s AND name = 'g'",
            "tool_calls/5/result_seq",
        ),
        (
            "UPDATE agent_tool_calls SET name = 'h'"
            " WHERE session_id = %s AND name = 'f'",
            "tool_calls/4/name",
        ),
        (
            "DELETE FROM agent_tool_calls WHERE session_id = %s AND name = 'f'",
            "tool_calls/4",
        ),
        (
            "UPDATE agent_tool_calls SET call_seq = 2"
            " WHERE session_id = %s AND name = 'f'",
            "tool_calls/2",
        ),
        (
            "UPDATE agent_snapshots SET version = 9 WHERE session_id = %s",
            "snapshots/10/version",
        ),
        (
            "UPDATE agent_snapshots SET seq = seq + 99 WHERE session_id = %s",
            "snapshots/109",
        ),
        (
            """UPDATE agent_snapshots SET state = '{}' WHERE session_id = %s""",
            "snapshots/10/state/cart",
        ),
        ("DELETE FROM agent_events WHERE session_id = %s AND seq = 3", "events/3 to 3"),
        ("DELETE FROM agent_events WHERE session_id = %s AND seq = 0", "events/0"),
        ("DELETE FROM agent_events WHERE session_id = %s AND seq = 13", "last_seq"),
        (
            "UPDATE agent_events SET payload_bytes = 3"
            " WHERE session_id = %s AND seq = 2",
            "events/2/payload_bytes",
        ),
    ],
)
def test_a_damaged_row_is_found(session: Session, sql: str, path: str) -> None:
    with damage() as run:
        run(sql, session.pk)
        assert path in paths(session)
    assert paths(session) == []


def test_a_damaged_state_is_told_to_the_member(session: Session) -> None:
    with damage() as run:
        state = dict(session.state) | {"cart": ["b", *session.state["cart"][1:]]}
        run(SESSION.format("state = %s"), codec.dumps(state), session.pk)
        [found] = differences_of(session.project_id, session.pk)
    assert str(found) == (
        f'session {session.pk} state/cart/0: log says "a", row says "b"'
    )


def test_another_order_of_keys_is_a_difference(session: Session) -> None:
    turned = codec.dumps(dict(reversed(session.state.items())))
    with damage() as run:
        run(SESSION.format("state = %s"), turned, session.pk)
        assert paths(session) == ["state"]


def test_a_version_out_of_turn_and_a_patch_that_does_not_apply_are_found(
    session: Session,
) -> None:
    with damage() as run:
        payload = '{"version":9,"patch":[{"op":"remove","path":"/none"}]}'
        run(
            "UPDATE agent_events SET payload = %s, payload_bytes = %s"
            " WHERE session_id = %s AND seq = 11",
            payload,
            len(payload),
            session.pk,
        )
        found = paths(session)
    assert "events/11/payload/version" in found
    assert "events/11/payload/patch" in found


def verify(**options: Any) -> tuple[str, bool]:
    """The command's output, and whether it found nothing."""
    out = StringIO()
    try:
        call_command("verify_replay", stdout=out, **options)
    except CommandError:
        return out.getvalue(), False
    return out.getvalue(), True


def test_the_command_reports_by_project_and_fails(session: Session) -> None:
    project = str(session.project_id)
    text, ok = verify(project=project)
    assert ok
    assert text.startswith("1 sessions verified (sessions")
    with damage() as run:
        run(SESSION.format("title = 'x'"), session.pk)
        text, ok = verify(project=project)
        assert not ok
        assert f'session {session.pk} title: log says "T", row says "x"' in text
        text, ok = verify(session=str(session.pk), json=True)
        assert not ok
        first, summary = map(json.loads, text.splitlines())
        assert first == {
            "session": str(session.pk),
            "path": "title",
            "log": "T",
            "row": "x",
        }
        assert summary == {"sessions": 1, "differences": 1}
        assert verify(session=session.key)[1] is False


def test_rows_of_no_session_are_found(session: Session) -> None:
    with damage() as run:
        run("DELETE FROM agent_sessions WHERE id = %s", session.pk)
        text, ok = verify(project=str(session.project_id))
    assert not ok
    for table in ("agent_events", "agent_snapshots", "agent_tool_calls"):
        assert f"session {session.pk}: rows in {table}, but no session" in text


def test_an_unknown_session_or_project_is_an_error() -> None:
    with pytest.raises(CommandError, match="no session"):
        call_command("verify_replay", session=str(new_id()))
    with pytest.raises(CommandError, match="no project"):
        call_command("verify_replay", project="none such")


def test_another_app_adds_its_own_projection(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projection, "_projections", {})

    def plan_differences(of: Session) -> Iterator[Difference]:
        yield Difference(of.pk, "plan/0", "done", "pending")

    projection.register_projection("plan", plan_differences)
    text, ok = verify(session=str(session.pk))
    assert not ok
    assert 'plan/0: log says "done", row says "pending"' in text
    assert "verified (plan)" in text


def test_rp_08_live_and_rebuilt_state_are_one(project: Any) -> None:
    made, _ = create_session(project.id, SessionFields())
    baskets: list[Any] = [["pear"], ["egg", "rice"], ["egg", "rice", "salt"]]
    baskets.append([*baskets[-1], "oil"])
    for version, basket in enumerate(baskets):
        write_state(
            project.id, made.pk, {"basket": basket}, expected_version=version, actor="t"
        )
    made.refresh_from_db()
    rebuilt = state_at(made, made.last_seq)
    assert codec.dumps(rebuilt.state) == codec.dumps(made.state)
    assert made.state == {"basket": ["egg", "rice", "salt", "oil"]}
    assert rebuilt.version == made.version == 4
    assert paths(made) == []


def test_a_long_log_with_snapshots_is_verified(project: Any) -> None:
    made, _ = create_session(project.id, SessionFields())
    for version in range(450):
        write_state(
            project.id, made.pk, {"n": version}, expected_version=version, actor="t"
        )
    assert paths(made) == []
    with damage() as run:
        run(
            "UPDATE agent_snapshots SET state = '{\"n\": 0}' WHERE session_id = %s",
            made.pk,
        )
        assert len(paths(made)) >= 2


def test_missing_sessions_are_no_difference(project: Any) -> None:
    assert list(differences_of(project.id, UUID(int=1))) == []


def test_a_stand_in_replaced_later_stands_in_the_past(project: Any) -> None:
    made, _ = create_session(project.id, SessionFields())
    append(
        made,
        ("tool.call", {"tool_call_id": "c", "name": "f"}),
        ("tool.result", {"tool_call_id": "c", "synthetic": True}),
        ("message.user", {"content": "?"}),
        ("tool.result", {"tool_call_id": "c", "content": "REAL"}),
    )
    made.refresh_from_db()
    open_at = [[call.call_seq for call in open_calls_at(made, seq)] for seq in range(5)]
    assert open_at == [[], [1], [], [], []]
    fork = fork_session(project.id, made.pk, 3, SessionFields(), actor="t")
    append(fork, ("tool.result", {"tool_call_id": "c", "content": "REAL TOO"}))
    [call] = ToolCall.objects.filter(session_id=fork.pk)
    assert (call.result_seq, call.stand_in_seq) == (4, 2)
    assert paths(made) == paths(fork) == []
