"""export_sessions: what went in comes out equal, in its own form and in ours."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agentstate import codec
from agentstate.ids import new_id
from sessions_app.append import NewEvent, append_events
from sessions_app.forking import fork_session
from sessions_app.log import event_json, read_all
from sessions_app.models import Session
from sessions_app.projection import differences_of
from sessions_app.services import (
    SessionFields,
    append_event,
    close_session,
    create_session,
    reopen_session,
    update_session,
    write_state,
)
from sessions_app.transcripts import anthropic, openai
from tests.fixtures import make_project
from tests.sessions_app.transcripts import (
    assert_same,
    run_export,
    run_import,
    write_lines,
)

texts = st.text(max_size=8) | st.sampled_from(["", "hi", "é\0", "{}", '{"a": 1}'])
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**400, -(2**64)])
    | st.decimals(allow_nan=False, allow_infinity=False, places=3)
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3)
    ),
    max_leaves=6,
)
names = st.sampled_from(["c1", "c2", "call_9", "x" * 300, "\0"]) | values
odd_keys = st.dictionaries(
    st.sampled_from(["name", "refusal", "audio", "id", "ts", "_source", "x"]),
    values,
    max_size=2,
)


def partly(required: dict[str, Any], optional: dict[str, Any]) -> Any:
    """Objects with these members, some left out, and sometimes others besides."""
    known = st.fixed_dictionaries(required, optional=optional)
    return st.builds(lambda a, b: {**b, **a}, known, odd_keys)


parts = st.lists(
    partly(
        {"type": st.sampled_from(["text", "image_url", "thinking"])}, {"text": texts}
    )
    | values,
    max_size=3,
)
contents = texts | parts | st.none() | values
openai_calls = (
    partly(
        {
            "id": names,
            "type": st.sampled_from(["function", "function", "custom", "other"]),
        },
        {
            "function": partly({"name": names}, {"arguments": texts | values}),
            "custom": partly({"name": names}, {"input": texts}),
            "index": st.integers(0, 3),
        },
    )
    | values
)
openai_messages = (
    partly(
        {"role": st.sampled_from(["user", "system", "developer", "other"])},
        {"content": contents},
    )
    | partly(
        {"role": st.just("assistant")},
        {
            "content": contents,
            "tool_calls": st.none() | st.lists(openai_calls, max_size=3) | values,
            "function_call": partly({"name": names}, {"arguments": texts}) | values,
        },
    )
    | partly(
        {"role": st.sampled_from(["tool", "function"])},
        {"content": contents, "tool_call_id": names, "is_error": values},
    )
    | values
)
blocks = (
    partly(
        {"type": st.just("tool_use")},
        {"id": names, "name": names, "input": values, "cache_control": values},
    )
    | partly(
        {"type": st.just("tool_result")},
        {"tool_use_id": names, "content": contents, "is_error": values},
    )
    | partly({"type": st.sampled_from(["text", "thinking"])}, {"text": texts})
    | values
)
anthropic_messages = (
    partly(
        {"role": st.sampled_from(["user", "assistant", "system", "other"])},
        {"content": texts | st.lists(blocks, max_size=4) | values},
    )
    | values
)


@given(st.lists(openai_messages, max_size=6))
@settings(max_examples=400, deadline=None)
def test_openai_messages_come_back_equal(messages: list[Any]) -> None:
    drafts = [draft for each in messages for draft in openai.read_message(each)]
    assert_same(messages, list(openai.write_messages(drafts)))


@given(st.lists(anthropic_messages, max_size=6))
@settings(max_examples=400, deadline=None)
def test_anthropic_messages_come_back_equal(messages: list[Any]) -> None:
    drafts = [draft for each in messages for draft in anthropic.read_message(each)]
    assert_same(messages, list(anthropic.write_messages(drafts)))


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1'}}


@pytest.mark.parametrize(
    ("message", "event_types"),
    [
        ({"role": "user", "content": "x", "name": "Al"}, ["message.user"]),
        ({"role": "user", "content": [{"type": "text"}]}, ["message.user"]),
        ({"role": "user", "content": None}, ["message.user"]),
        ({"role": "user"}, ["message.user"]),
        ({"role": "developer", "content": "x"}, ["message.system"]),
        (
            {"role": "assistant", "content": None, "refusal": "no"},
            ["message.assistant"],
        ),
        ({"role": "assistant", "tool_calls": None}, ["message.assistant"]),
        ({"role": "assistant", "content": "", "tool_calls": []}, ["message.assistant"]),
        (
            {"role": "assistant", "tool_calls": [CALL, CALL | {"id": "d"}]},
            ["message.assistant", "tool.call", "tool.call"],
        ),
        (
            {
                "role": "assistant",
                "content": "x",
                "tool_calls": [
                    {"id": "c", "type": "custom", "custom": {"name": "n", "input": ""}}
                ],
            },
            ["message.assistant", "tool.call"],
        ),
        (
            {"role": "assistant", "content": "x", "tool_calls": [CALL | {"index": 0}]},
            ["message.assistant", "tool.call"],
        ),
        (
            {
                "role": "assistant",
                "content": None,
                "function_call": {"name": "f", "arguments": "{}"},
            },
            ["message.assistant", "tool.call"],
        ),
        ({"role": "function", "name": "f", "content": "1"}, ["tool.result"]),
        ({"role": "tool", "tool_call_id": "c", "content": None}, ["tool.result"]),
        ({"role": "tool", "tool_call_id": "c"}, ["tool.result"]),
        ({"role": "tool", "content": "no id"}, ["openai.message"]),
        ({"role": "nobody", "content": "x"}, ["openai.message"]),
        ({"role": "user", "content": "x", "_source": {}}, ["openai.message"]),
        ("text", ["openai.message"]),
    ],
)
def test_openai_messages_become_events(message: Any, event_types: list[str]) -> None:
    drafts = openai.read_message(message)
    assert [event_type for event_type, _ in drafts] == event_types
    assert_same([message], list(openai.write_messages(drafts)))


def test_arguments_stay_the_string_that_they_were() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    [_, (_, payload)] = openai.read_message(message)
    assert payload == {"tool_call_id": "c", "name": "f", "arguments": '{"a":1'}


TEXT = {"type": "text", "text": "x"}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
USE = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [TEXT]}


@pytest.mark.parametrize(
    ("role", "content", "event_types"),
    [
        ("user", "x", ["message.user"]),
        ("user", [TEXT], ["message.user"]),
        ("user", [], ["message.user"]),
        ("assistant", [THINKING, TEXT, USE], ["message.assistant", "tool.call"]),
        (
            "assistant",
            [TEXT, USE, THINKING, USE | {"cache_control": {}}],
            ["message.assistant", "tool.call", "tool.call"],
        ),
        ("assistant", [USE], ["message.assistant", "tool.call"]),
        ("user", [RESULT], ["tool.result"]),
        ("user", [RESULT, RESULT | {"is_error": True}], ["tool.result"] * 2),
        ("user", [RESULT, TEXT], ["tool.result", "message.user"]),
        ("user", [TEXT, RESULT, TEXT, RESULT], ["tool.result"] * 2 + ["message.user"]),
        ("assistant", [USE | {"id": None}], ["anthropic.message"]),
        ("user", [3], ["anthropic.message"]),
    ],
)
def test_anthropic_messages_become_events(
    role: str, content: Any, event_types: list[str]
) -> None:
    message = {"role": role, "content": content, "model": "m"}
    drafts = anthropic.read_message(message)
    assert [event_type for event_type, _ in drafts] == event_types
    both = [*drafts, *anthropic.read_message(message)]
    assert_same([message, message], list(anthropic.write_messages(both)))


lines = st.lists(
    st.builds(
        lambda head, messages: {**head, "messages": messages},
        st.dictionaries(
            st.sampled_from(["agent", "subject", "tools", "model", "\0"]),
            values,
            max_size=3,
        ),
        st.lists(openai_messages, max_size=3),
    ),
    max_size=3,
)


@given(lines=lines, system=values, form=st.sampled_from(["openai", "anthropic"]))
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example(
    lines=[{"messages": [{"role": "system", "content": "y"}]}],
    system=[TEXT],
    form="anthropic",
)
def test_files_come_back_equal(
    tmp_path: Path, lines: list[Any], system: Any, form: str
) -> None:
    project = make_project()
    lines = [line | {"id": f"{n}", "system": system} for n, line in enumerate(lines)]
    path = write_lines(tmp_path / "f.jsonl", lines)
    assert run_import(path, project, form).ok
    assert_same(lines, run_export(project, form))
    for session in Session.objects.filter(project_id=project.id):
        assert list(differences_of(project.id, session.pk)) == []


def append(session: Session, *events: tuple[str, Any]) -> None:
    append_events(
        session.project_id,
        session.pk,
        [NewEvent(type=name, payload=payload) for name, payload in events],
        actor="key:abc",
    )


@pytest.fixture
def session(project: Any) -> Session:
    """A session with something of all that a log can hold."""
    made, _ = create_session(
        project.id,
        SessionFields(agent="a", subject="u", labels={"l": "1"}, metadata={"n": 2**70}),
        state={"cart": [1]},
    )
    append(
        made,
        ("message.system", {"content": "be kind"}),
        ("message.user", {"content": "hi \0"}),
        ("reasoning", {"content": "hm"}),
        ("tool.call", {"tool_call_id": "v1", "name": "f", "arguments": {"q": 1}}),
        ("acme.note", {"deep": [{"x": None}], "big": 10**300}),
        ("tool.call", {"tool_call_id": "v2", "name": "g"}),
        (
            "tool.result",
            {
                "tool_call_id": "v1",
                "content": {"errors": [{"loc": ["qty"], "msg": "too small"}]},
                "is_error": True,
            },
        ),
        ("tool.result", {"tool_call_id": "v2", "content": "ok"}),
        ("provider.special", {"tool_call_id": "v1", "k": [1, {"deep": None}]}),
        (
            "message.assistant",
            {
                "content": [
                    {"type": "thinking", "id": "th_1", "signature": "c2ln"},
                    {"type": "text", "text": "ok", "new_field": "keep me too"},
                ]
            },
        ),
    )
    write_state(
        project.id, made.pk, {"b": 1, "cart": [2, 3]}, expected_version=1, actor="t"
    )
    append_event(project.id, made.pk, "run.started", {"run": "r-1"}, run_id=new_id())
    update_session(project.id, made.pk, {"title": "T", "labels": {"l": "2"}}, actor="t")
    close_session(project.id, made.pk, actor="t", reason="done")
    reopen_session(project.id, made.pk, actor="t", reason="again")
    close_session(project.id, made.pk, actor="t", reason="over")
    made.refresh_from_db()
    return made


def shown(session: Session) -> list[Any]:
    """The log as LIST gives it, without what belongs to the server that wrote it."""
    events = [json.loads(codec.dumps(event_json(e))) for e in read_all(session)]
    for event in events:
        del event["actor"], event["created_at"]
    return events


def test_ev_21_every_value_survives_each_hop(
    session: Session, project: Any, other_project: Any, tmp_path: Path
) -> None:
    exported = run_export(project, "jsonl")
    path = write_lines(tmp_path / "all.jsonl", exported)
    done = run_import(path, other_project, "jsonl")
    assert done.ok, done.errors
    there = Session.objects.get(project_id=other_project.id)
    for name in ("agent", "subject", "title", "status", "labels", "metadata", "state"):
        assert_same(getattr(session, name), getattr(there, name))
    for name in ("version", "last_seq", "closed_at"):
        assert getattr(session, name) == getattr(there, name)
    known = shown(session)
    [run] = [event for event in known if event["type"] == "run.started"]
    run["type"] = "imported.run.started"
    assert_same(known, shown(there))
    assert list(differences_of(other_project.id, there.pk)) == []
    again = run_export(other_project, "jsonl")
    for line in (*exported, *again):
        del line["actor"], line["created_at"]
    del exported[0]["id"], again[0]["id"]  # of the record of its own creation
    assert_same(exported, again)
    repeated = run_import(path, other_project, "jsonl")
    assert repeated.ok
    assert f"0 events added, {len(exported) - 1} known" in repeated.out
    assert_same(known, shown(there))


def test_a_fork_is_exported_whole(
    session: Session, project: Any, other_project: Any, tmp_path: Path
) -> None:
    fork = fork_session(
        project.id,
        session.pk,
        session.last_seq,
        SessionFields(key="fork", title="mine"),
        actor="t",
    )
    append(fork, ("message.user", {"content": "on"}))
    lines = run_export(project, "jsonl", session=["fork"])
    path = write_lines(tmp_path / "f.jsonl", lines)
    done = run_import(path, other_project, "jsonl")
    assert done.ok, done.errors
    there = Session.objects.get(project_id=other_project.id)
    fork.refresh_from_db()
    assert (there.key, there.title, there.status) == ("fork", "mine", "open")
    assert_same(fork.state, there.state)
    assert there.last_seq == fork.last_seq
    assert list(differences_of(other_project.id, there.pk)) == []


def test_a_session_that_was_never_imported_is_told_as_chat(
    session: Session, project: Any
) -> None:
    [line] = run_export(project, "openai")
    assert line["id"] == str(session.pk)
    roles = [message["role"] for message in line["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant"]
    calls = line["messages"][2]["tool_calls"]
    assert [call["function"] for call in calls] == [
        {"name": "f", "arguments": '{"q":1}'},
        {"name": "g"},
    ]
    [line] = run_export(project, "anthropic")
    assert line["system"] == "be kind"
    told = line["messages"]
    assert [each["role"] for each in told] == ["user", "assistant", "user", "assistant"]
    assert told[1]["content"][0]["input"] == {"q": 1}
    assert [block["type"] for block in told[2]["content"]] == ["tool_result"] * 2


def test_only_the_sessions_asked_for_into_a_file(
    project: Any, other_project: Any, tmp_path: Path
) -> None:
    for key in ("a", "b", "c"):
        create_session(project.id, SessionFields(key=key))
    create_session(other_project.id, SessionFields(key="foreign"))
    path = tmp_path / "out.jsonl"
    assert run_export(project, "openai", output=path, session=["a", "c"]) == []
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["id"] for line in told] == ["a", "c"]
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(CommandError, match="no session foreign"):
        run_export(project, "openai", session=["foreign"])
    with pytest.raises(CommandError, match="No such file"):
        call_command(
            "export_sessions",
            project=str(project.id),
            format="openai",
            output=tmp_path / "none" / "out",
        )
