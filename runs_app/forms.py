"""What the pages of runs may be asked for, read from their address."""

from typing import Any
from uuid import UUID

from django import forms

from runs_app.querysets import RunQuerySet
from runs_app.states import RunState
from sessions_app.forms import PageForm

VIEWS = (
    ("All", ""),
    (
        "Active",
        "state=queued&state=running&state=waiting&state=paused&state=cancelling",
    ),
    ("Waiting", "state=waiting"),
    ("Retrying", "retrying=1"),
    ("Failed", "state=failed"),
)


class StatesField(forms.MultipleChoiceField):
    """Several states, each by itself or together: `state=failed,waiting`."""

    def to_python(self, value: Any) -> list[str]:
        return [
            state for text in value or () for state in str(text).split(",") if state
        ]


class RunFilters(PageForm):
    """Filters of the list of runs. Their query is a view that can be kept and sent."""

    state = StatesField(required=False, choices=RunState.choices)
    agent = forms.CharField(required=False, max_length=200)
    session = forms.CharField(required=False, max_length=64)
    q = forms.CharField(required=False, max_length=200, label="Find")
    label = forms.CharField(required=False, max_length=200)
    retrying = forms.BooleanField(required=False)

    def clean_session(self) -> UUID | None:
        text = self.cleaned_data["session"].strip()
        try:
            return UUID(text) if text else None
        except ValueError:
            raise forms.ValidationError("This is no id of a session.") from None

    def clean_label(self) -> str:
        text: str = self.cleaned_data["label"].strip()
        if text and ":" not in text:
            raise forms.ValidationError("A label is written name:value.")
        return text

    def apply(self, runs: RunQuerySet) -> RunQuerySet:
        if self.errors:
            return runs.none()
        if states := self.value("state"):
            runs = runs.filter(state__in=states)
        if agent := self.value("agent"):
            runs = runs.filter(agent=agent)
        if session_id := self.value("session"):
            runs = runs.filter(session_id=session_id)
        if q := self.value("q"):
            runs = runs.filter(**_named(q.strip()))
        if label := self.value("label"):
            name, _, text = label.partition(":")
            runs = runs.with_labels({name.strip(): text.strip()})
        return runs.retrying() if self.value("retrying") else runs


def _named(q: str) -> dict[str, Any]:
    try:
        return {"id": UUID(q)}
    except ValueError:
        return {"key": q}
