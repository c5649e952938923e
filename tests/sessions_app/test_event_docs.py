"""docs/events.md is made from the code and says what the code does."""

import pytest
from django.core.management import CommandError, call_command

from sessions_app import event_types
from sessions_app.event_docs import events_markdown
from sessions_app.event_types import EVENT_TYPES, EventType, check_event


def test_the_file_is_current() -> None:
    call_command("write_event_docs", check=True)


def test_a_type_that_is_not_in_the_file_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_types, "EVENT_TYPES", dict(EVENT_TYPES))
    monkeypatch.setattr("sessions_app.event_docs.EVENT_TYPES", event_types.EVENT_TYPES)
    event_types.describe(EventType("run.started", "A run began."))
    assert "### `run.started`\n\nA run began.\n" in events_markdown()
    with pytest.raises(CommandError, match="not current"):
        call_command("write_event_docs", check=True)


@pytest.mark.parametrize("name", EVENT_TYPES)
def test_every_known_type_has_a_section_with_an_example(name: str) -> None:
    known = EVENT_TYPES[name]
    assert f"### `{name}`\n" in events_markdown()
    assert known.doc and known.example
    if not known.is_from_server:
        check_event(0, name, known.example)
