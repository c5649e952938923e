"""import_sessions: idempotent, in order, beside others, and honest about bad lines."""

import os
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from agentstate.ids import new_id
from sessions_app.append import NewEvent, append_events
from sessions_app.forking import fork_session
from sessions_app.importing import Import
from sessions_app.log import read_all
from sessions_app.models import Event, Session
from sessions_app.services import SessionFields, create_session
from sessions_app.transcripts.reading import Source
from tests.sessions_app.transcripts import (
    assert_same,
    read_jsonl,
    run_export,
    run_import,
    write_lines,
)

ROOT = Path(__file__).resolve().parents[2]


def message(number: int, **more: Any) -> dict[str, Any]:
    return {"id": f"m-{number}", "role": "user", "content": f"message {number}", **more}


def contents(session: Session) -> list[Any]:
    return [event.payload.get("content") for event in read_all(session)]


def only_session(project: Any) -> Session:
    return Session.objects.get(project_id=project.id)


@pytest.mark.shared
def test_airline_imported_twice_is_there_once_and_comes_back_equal(
    project: Any, shared_dir: Path
) -> None:
    path = shared_dir / "transcripts" / "airline.jsonl"
    first = run_import(path, project, "openai")
    assert first.ok
    assert first.out.startswith("50 sessions made, 0 known; ")
    second = run_import(path, project, "openai")
    assert second.ok
    assert second.out.startswith("0 sessions made, 50 known; 0 events added")
    assert Session.objects.filter(project_id=project.id).count() == 50
    lines, back = read_jsonl(path), run_export(project, "openai")
    assert len(back) == 50
    for line, returned in zip(lines, back, strict=True):
        assert_same(line, returned)
    session = Session.objects.get(project_id=project.id, key="airline-0")
    assert session.agent == "airline"


def test_im_02_equal_time_stamps_are_no_duplicates(
    project: Any, tmp_path: Path
) -> None:
    at = "2026-03-01T10:00:00Z"
    path = write_lines(
        tmp_path / "chat.jsonl",
        [{"ts": at, "role": "user", "content": text} for text in ("ok", "go", "ok")],
    )
    for form in ("openai", "openai"):
        assert run_import(path, project, form).ok
    session = only_session(project)
    assert session.key == "chat"
    assert contents(session) == ["ok", "go", "ok"]
    assert all(event.occurred_at is not None for event in read_all(session))


@pytest.mark.parametrize("form", ["openai", "anthropic", "jsonl"])
@pytest.mark.parametrize("turned", [False, True])
def test_im_03_overlapping_slices_meet_in_one_order(
    project: Any, tmp_path: Path, form: str, turned: bool
) -> None:
    def line(number: int) -> dict[str, Any]:
        if form == "jsonl":
            payload = {"content": f"message {number}"}
            return {"id": f"e-{number}", "type": "message.user", "payload": payload}
        return message(number)

    slices = [range(1, 101), range(51, 151)]
    for part in reversed(slices) if turned else slices:
        path = write_lines(tmp_path / "s.jsonl", [line(number) for number in part])
        assert run_import(path, project, form, session="history").ok
    assert contents(only_session(project)) == [f"message {n}" for n in range(1, 151)]


@pytest.mark.parametrize("turned", [False, True])
def test_im_03_slices_of_one_conversation_a_line_meet(
    project: Any, tmp_path: Path, turned: bool
) -> None:
    slices = [range(1, 1201), range(601, 1801)]
    for part in reversed(slices) if turned else slices:
        line = {"id": "c-1", "messages": [message(number) for number in part]}
        path = write_lines(tmp_path / "c.jsonl", [line])
        assert run_import(path, project, "openai").ok
    assert contents(only_session(project)) == [f"message {n}" for n in range(1, 1801)]


def test_an_earlier_slice_is_not_put_into_a_session_that_went_on(
    project: Any, tmp_path: Path
) -> None:
    late = write_lines(tmp_path / "late.jsonl", [message(n) for n in (3, 4)])
    assert run_import(late, project, "openai", session="h").ok
    session = only_session(project)
    told = NewEvent(type="message.user", payload={"content": "live"})
    append_events(project.id, session.pk, [told], actor="key:x")
    early = write_lines(tmp_path / "early.jsonl", [message(n) for n in (1, 2, 3)])
    done = run_import(early, project, "openai", session="h")
    assert not done.ok
    assert "line 3: order_differs" in done.errors
    assert sorted(contents(only_session(project))) == [
        "live",
        *(f"message {n}" for n in (1, 2, 3, 4)),
    ]


def test_a_session_with_forks_is_not_moved(project: Any, tmp_path: Path) -> None:
    late = write_lines(tmp_path / "late.jsonl", [message(n) for n in (3, 4)])
    assert run_import(late, project, "openai", session="h").ok
    session = only_session(project)
    fork = fork_session(project.id, session.pk, 1, SessionFields(), actor="t")
    early = write_lines(tmp_path / "early.jsonl", [message(n) for n in (1, 2, 3)])
    assert not run_import(early, project, "openai", session="h").ok
    assert contents(fork) == ["message 3"]


def test_a_conversation_that_grew_gets_its_new_end(
    project: Any, tmp_path: Path
) -> None:
    messages = [{"role": "user", "content": f"{n}"} for n in range(5)]
    for length in (3, 5, 2):
        line = {"id": "c", "messages": messages[:length]}
        assert run_import(write_lines(tmp_path / "c", [line]), project, "openai").ok
    assert contents(only_session(project)) == ["0", "1", "2", "3", "4"]


def test_a_message_that_changed_is_refused_with_its_line(
    project: Any, tmp_path: Path
) -> None:
    lines: list[Any] = [{"id": "a", "messages": [message(1)]}]
    assert run_import(write_lines(tmp_path / "c", lines), project, "openai").ok
    changed = {"id": "a", "messages": [message(1, content="other"), message(2)]}
    lines = [{"id": "b", "messages": [message(1)]}, changed]
    done = run_import(write_lines(tmp_path / "c", lines), project, "openai")
    assert not done.ok
    assert "line 2: event_id_reused" in done.errors
    session = Session.objects.get(project_id=project.id, key="a")
    assert contents(session) == ["message 1"]
    assert Session.objects.filter(project_id=project.id).count() == 2


def test_a_line_without_an_id_is_known_by_its_hash(
    project: Any, tmp_path: Path
) -> None:
    lines = [{"messages": [message(1)]}, {"messages": [message(2)]}]
    for _ in range(2):
        assert run_import(write_lines(tmp_path / "c", lines), project, "openai").ok
    keys = Session.objects.filter(project_id=project.id).values_list("key", flat=True)
    assert len(keys) == 2
    assert all(key and key.startswith("sha256:") for key in keys)


def test_im_06_imports_and_appends_do_not_disturb_each_other(
    project: Any, other_project: Any, tmp_path: Path
) -> None:
    live = [create_session(p.id, SessionFields())[0] for p in (project, other_project)]
    failures: list[BaseException] = []
    appended, done = [0, 0], threading.Event()

    def append_on(index: int) -> None:
        session = live[index]
        try:
            while not done.is_set():
                event = NewEvent(type="message.user", payload={"content": "live"})
                append_events(session.project_id, session.pk, [event], actor="t")
                appended[index] += 1
        except BaseException as exc:
            failures.append(exc)
        finally:
            connection.close()

    path = write_lines(tmp_path / "rows", [message(n) for n in range(500)])

    def import_round(target: Any, number: int) -> bool:
        try:
            return run_import(path, target, "openai", session=f"round-{number}").ok
        finally:
            connection.close()

    writers = [threading.Thread(target=append_on, args=[i]) for i in (0, 1)]
    for writer in writers:
        writer.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            rounds = [
                pool.submit(import_round, target, number)
                for number in range(20)
                for target in (project, other_project, project)
            ]
            assert all(each.result() for each in rounds)
    finally:
        done.set()
        for writer in writers:
            writer.join()
    assert not failures
    for target, session, count in zip(
        (project, other_project), live, appended, strict=True
    ):
        counts = dict.fromkeys(
            Session.objects.filter(
                project_id=target.id, key__startswith="round-"
            ).values_list("last_seq", flat=True)
        )
        assert list(counts) == [500]
        assert (
            Session.objects.filter(
                project_id=target.id, key__startswith="round-"
            ).count()
            == 20
        )
        session.refresh_from_db()
        assert session.last_seq == count > 0


def own_17_lines(repaired: bool) -> list[Any]:
    lines: list[Any] = [
        {
            "session": f"s-{number // 100}",
            "id": f"e-{number}",
            "type": "message.user",
            "payload": {"content": f"{number}"},
        }
        for number in range(1, 1001)
    ]
    if not repaired:
        lines[499] = '{"session": "s-5", "id": "e-500", "ty'
        lines[699]["type"] = "Nonsense"
    lines[899]["project"] = "globex"
    return lines


def test_own_17_bad_lines_are_named_and_the_rest_goes_on(
    project: Any, tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "f.jsonl", own_17_lines(repaired=False))
    done = run_import(path, project, "jsonl")
    assert not done.ok
    assert "997 events added" in done.out
    assert "3 lines refused" in done.out
    told = [line.split(":")[:2] for line in done.errors.splitlines()]
    assert told == [
        ["line 500", " malformed_json"],
        ["line 700", " invalid_type_name"],
        ["line 900", " another_project"],
    ]
    path = write_lines(tmp_path / "f.jsonl", own_17_lines(repaired=True))
    done = run_import(path, project, "jsonl")
    assert not done.ok
    assert "2 events added, 997 known; 1 lines refused" in done.out
    assert done.errors.startswith("line 900: another_project")
    counted = Event.objects.filter(project_id=project.id, seq__gt=0).count()
    assert counted == 999
    session = Session.objects.get(project_id=project.id, key="s-5")
    assert contents(session) == [f"{n}" for n in range(500, 600)]


def test_own_17_the_command_exits_with_1(project: Any, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "f.jsonl", ["{", {"messages": [message(1)]}])
    done = subprocess.run(
        [
            *[sys.executable, "manage.py", "import_sessions", str(path)],
            *["--project", project.name, "--format", "openai"],
        ],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "line 1: malformed_json" in done.stderr
    assert "\x1b" not in done.stderr  # no progress bar where there is no terminal
    assert contents(only_session(project)) == ["message 1"]


def test_own_17_memory_does_not_grow_with_the_file(
    project: Any, tmp_path: Path
) -> None:
    def peak(count: int) -> int:
        path = tmp_path / f"{count}.jsonl"
        lines = [{"role": "user", "content": f"{n}" * 100} for n in range(count)]
        write_lines(path, lines)
        source = Source(project=project, form="openai", session=f"s-{count}")
        tracemalloc.start()
        with path.open("rb") as file:
            counts = Import(source, lambda line, error: None).run(file)
        reached = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert counts.events_added == count
        return reached

    peak(600)  # what is loaded once
    assert peak(6000) < peak(1000) * 2


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("[]", "not_an_object"),
        ('{"messages": [{"role": "user", "content": NaN}]}', "non_finite"),
        ('{"messages": [], "messages": []}', "duplicate_key"),
        ('{"messages": [{"content": "\\ud800"}]}', "lone_surrogate"),
        ('{"messages": ' + "[" * 101 + "]" * 101 + "}", "too_deep"),
        ('{"messages": {}}', "invalid_type"),
        ('{"id": "a"}', "required"),
        ("nothing", "malformed_json"),
    ],
)
def test_a_line_that_cannot_be_kept_is_refused(
    project: Any, tmp_path: Path, line: str, code: str
) -> None:
    path = write_lines(tmp_path / "c", [line, "", {"id": "x", "messages": []}])
    done = run_import(path, project, "openai")
    assert not done.ok
    assert f"line 1: {code}: " in done.errors
    assert only_session(project).key == "x"


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"type": "a"}, "type"),
        ({"type": 1}, "type"),
        ({"payload": []}, "payload"),
        ({"payload": {}}, "payload.content"),
        ({"type": "state.changed", "payload": {"patch": []}}, "payload"),
        ({"type": "session.created", "payload": {"title": 3}}, "payload.title"),
        ({"type": "session.created", "payload": {"key": "\0"}}, "payload.key"),
        ({"type": "session.updated", "payload": {"changes": {"id": 1}}}, "changes.id"),
        ({"type": "session.closed", "payload": {"at": "soon"}}, "payload.closed_at"),
        ({"run": "r-1"}, "run"),
        ({"occurred_at": "yesterday"}, "occurred_at"),
        ({"session": ""}, "session"),
        ({"color": "red"}, "color"),
    ],
)
def test_an_event_line_that_does_not_fit_is_refused(
    project: Any, tmp_path: Path, change: dict[str, Any], where: str
) -> None:
    good = {"session": "s", "type": "message.user", "payload": {"content": "x"}}
    path = write_lines(tmp_path / "c", [good | change, good])
    done = run_import(path, project, "jsonl")
    assert not done.ok
    assert done.errors.startswith("line 1: ")
    assert where in done.errors
    assert contents(only_session(project)) == ["x"]


def test_a_dry_run_counts_and_stores_nothing(project: Any, tmp_path: Path) -> None:
    lines: list[Any] = [
        {"id": "a", "messages": [message(1), message(2)]},
        {"id": "b", "messages": [message(1)]},
    ]
    path = write_lines(tmp_path / "c", lines)
    done = run_import(path, project, "openai", dry_run=True)
    assert done.ok
    assert done.out.startswith(
        "2 sessions would be made, 0 known; 3 events would be added, 0 known"
    )
    assert not Session.objects.filter(project_id=project.id).exists()
    assert run_import(write_lines(path, lines[:1]), project, "openai").ok
    done = run_import(write_lines(path, lines), project, "openai", dry_run=True)
    assert done.out.startswith(
        "1 sessions would be made, 1 known; 1 events would be added, 2 known"
    )


def test_a_locked_or_closed_session_refuses_its_line(
    project: Any, tmp_path: Path
) -> None:
    from sessions_app.services import close_session, lock_session, release_lock

    line = {"id": "a", "messages": [message(1)]}
    assert run_import(write_lines(tmp_path / "c", [line]), project, "openai").ok
    session = only_session(project)
    lock = lock_session(project.id, session.pk, holder="h", seconds=60)
    line["messages"].append(message(2))
    done = run_import(write_lines(tmp_path / "c", [line]), project, "openai")
    assert "line 1: session_locked" in done.errors
    release_lock(project.id, session.pk, lock.token)
    close_session(project.id, session.pk, actor="t")
    done = run_import(write_lines(tmp_path / "c", [line]), project, "openai")
    assert "line 1: session_closed" in done.errors


def test_tool_calls_are_closed_by_their_results(project: Any, tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    line = {
        "id": str(new_id()),
        "messages": [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "done"},
        ],
    }
    assert run_import(write_lines(tmp_path / "c", [line]), project, "openai").ok
    session = only_session(project)
    [found] = session.tool_calls.all()
    assert (found.call_seq, found.result_seq, found.name) == (2, 3, "f")
    assert [event.type for event in read_all(session)] == [
        "message.assistant",
        "tool.call",
        "tool.result",
    ]
