"""What the pages of sessions may be asked for, read from their address."""

from datetime import datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from django import forms
from django.utils import timezone

from agentstate.clock import db_now
from agentstate.errors import FieldError
from sessions_app.artifacts.quota import MEGABYTE
from sessions_app.models import SessionStatus
from sessions_app.querysets import ArtifactQuerySet, SessionQuerySet

HOURS = (("1", "last hour"), ("24", "last 24 hours"), ("168", "last 7 days"))


class Span(NamedTuple):
    """From `begin` to before `end`, as instants."""

    begin: datetime
    end: datetime


def read_megabytes(text: str) -> int | None:
    """Bytes, from a size in MB that was typed; None for none. Raises FieldError.

    Less than nothing is refused before it is rounded.
    """
    if not (text := text.strip()):
        return None
    try:
        size = Decimal(text)
        if size < 0:
            raise ValueError
        return int((size * MEGABYTE).to_integral_value())
    except (ArithmeticError, ValueError) as exc:
        raise FieldError("", "invalid", f"{text!r} is no number of MB.") from exc


class PageForm(forms.Form):
    """A filter form that is always bound; what is not valid is said, not guessed.

    A field's label is the word that stands beside it on the page.
    """

    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.is_valid()

    def value(self, name: str) -> Any:
        return self.cleaned_data.get(name) or None

    @property
    def problems(self) -> list[tuple[str, str]]:
        """What is wrong, each with the label of its field."""
        return [
            (str(self[name].label), str(error))
            for name, found in self.errors.items()
            for error in found
        ]

    @property
    def is_used(self) -> bool:
        return any(self.cleaned_data.values()) or bool(self.errors)


class SpanForm(PageForm):
    """A day of the reader's zone, or the last hours."""

    day = forms.DateField(
        required=False, widget=forms.DateInput(attrs={"type": "date"})
    )
    hours = forms.ChoiceField(
        required=False, choices=[("", "any time"), *HOURS], label="When"
    )

    def span(self) -> Span | None:
        """The day wins. It runs from midnight to midnight where the reader is, which
        on two days of the year are not 24 hours apart."""
        if day := self.value("day"):
            zone = timezone.get_current_timezone()
            begin = datetime.combine(day, time(), zone)
            return Span(begin, datetime.combine(day + timedelta(days=1), time(), zone))
        if hours := self.value("hours"):
            now = db_now()
            return Span(now - timedelta(hours=int(hours)), now + timedelta(minutes=1))
        return None


class SessionFilters(SpanForm):
    hours = forms.ChoiceField(
        required=False, choices=[("", "any time"), *HOURS], label="Changed"
    )
    q = forms.CharField(required=False, max_length=200, label="Find")
    agent = forms.CharField(required=False, max_length=200)
    subject = forms.CharField(required=False, max_length=200)
    status = forms.ChoiceField(
        required=False,
        choices=[("", "any status"), *((s, s) for s in SessionStatus.values)],
    )
    label = forms.CharField(required=False, max_length=200)

    def clean_label(self) -> str:
        text: str = self.cleaned_data["label"].strip()
        if text and ":" not in text:
            raise forms.ValidationError("A label is written name:value.")
        return text

    def apply(self, sessions: SessionQuerySet) -> SessionQuerySet:
        for name in ("agent", "subject", "status"):
            if value := self.value(name):
                sessions = sessions.filter(**{name: value})
        if label := self.value("label"):
            name, _, text = label.partition(":")
            sessions = sessions.with_labels({name.strip(): text.strip()})
        if q := self.value("q"):
            sessions = self._named(sessions, q)
        if span := self.span():
            sessions = sessions.active_between(span.begin, span.end)
        return sessions

    def _named(self, sessions: SessionQuerySet, q: str) -> SessionQuerySet:
        try:
            return sessions.filter(id=UUID(q.strip()))
        except ValueError:
            return sessions.matching(q)


class ArtifactFilters(PageForm):
    name = forms.CharField(required=False, max_length=255)
    session = forms.UUIDField(required=False)

    def apply(self, artifacts: ArtifactQuerySet) -> ArtifactQuerySet:
        if self.errors:
            return artifacts.none()
        if name := self.value("name"):
            artifacts = artifacts.filter(name__icontains=name)
        return artifacts


class LogFilters(PageForm):
    """What of one session's log is shown. `seq` opens at an event."""

    q = forms.CharField(required=False, max_length=200, label="Find")
    types = forms.CharField(required=False, max_length=300)
    seq = forms.IntegerField(
        required=False, min_value=0, max_value=2**62, label="Event"
    )
    after = forms.IntegerField(required=False, min_value=-1, max_value=2**62)
    before = forms.IntegerField(required=False, min_value=0, max_value=2**62)
    at = forms.IntegerField(
        required=False, min_value=0, max_value=2**62, label="After event"
    )

    def number(self, name: str) -> int | None:
        """As `value`, with 0 for 0."""
        found: int | None = self.cleaned_data.get(name)
        return found

    @property
    def type_list(self) -> list[str]:
        text = self.value("types") or ""
        return [name for name in (part.strip() for part in text.split(",")) if name]


class SearchFilters(SpanForm):
    q = forms.CharField(required=False, max_length=200, label="Words")
    agent = forms.CharField(required=False, max_length=200)
    type = forms.CharField(required=False, max_length=100)
    before = forms.CharField(required=False, max_length=500, widget=forms.HiddenInput)
