"""What the preview of a context may be asked for, read from its address."""

from django import forms

from context_app.forms import FORMS
from sessions_app.forms import PageForm


class PreviewForm(PageForm):
    budget = forms.IntegerField(
        required=False, min_value=200, max_value=2_000_000, label="Tokens at most"
    )
    format = forms.ChoiceField(
        required=False, choices=[(n, n) for n in FORMS], label="Written for"
    )
    at = forms.IntegerField(
        required=False, min_value=0, max_value=2**62, label="After event"
    )
    recall = forms.CharField(required=False, max_length=500, label="Recall what fits")
