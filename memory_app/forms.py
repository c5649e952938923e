"""What the pages of memory may be asked for, read from their address."""

from django import forms

from memory_app.models import Kind, Status
from memory_app.querysets import FactQuerySet
from sessions_app.forms import PageForm

SUBJECT_MAX = 255


class MemoryFilters(PageForm):
    q = forms.CharField(required=False, max_length=SUBJECT_MAX, label="Find")
    view = forms.ChoiceField(
        required=False, choices=[("", "subjects"), ("review", "review"), ("facts", "f")]
    )


class SubjectFilters(PageForm):
    """`subject` is kept as it is: spaces at its ends are part of a name."""

    subject = forms.CharField(max_length=SUBJECT_MAX, strip=False)
    q = forms.CharField(required=False, max_length=200, label="Find")
    kind = forms.ChoiceField(required=False, choices=[("", "any kind"), *Kind.choices])
    status = forms.ChoiceField(
        required=False,
        choices=[("", "current"), ("all", "all"), *Status.choices],
    )

    def apply(self, facts: FactQuerySet) -> FactQuerySet:
        status = self.value("status")
        if status is None:
            facts = facts.current()
        elif status != "all":
            facts = facts.filter(status=status)
        if kind := self.value("kind"):
            facts = facts.filter(kind=kind)
        if q := self.value("q"):
            facts = facts.containing(q)
        return facts
