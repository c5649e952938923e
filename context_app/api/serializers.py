"""Bodies and parameters of the calls on contexts and compactions."""

from typing import Any

from django.conf import settings
from rest_framework import serializers

from agentstate.api.params import CommaListField, Params
from agentstate.api.serializers import JSONObjectField, StringField
from context_app.forms import FORMS
from sessions_app.api.serializers import BIGINT_MAX

KEEP_MAX = 100


class SeqListField(CommaListField):
    """`keep=3,7` as `[3, 7]`."""

    default_error_messages = {"invalid": "these are seqs: whole numbers from 1 on"}

    def to_internal_value(self, data: Any) -> list[int]:  # type: ignore[override]
        parts = super().to_internal_value(data)
        if len(parts) > KEEP_MAX or not all(_is_seq(part) for part in parts):
            self.fail("invalid")
        return [int(part) for part in parts]


def _is_seq(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text[:20]) <= BIGINT_MAX


def default_budget() -> int:
    budget: int = settings.CONTEXT_BUDGET_TOKENS
    return budget


class ContextParams(Params):
    budget_tokens = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=10_000_000,
        help_text="The most tokens that the messages may have. Default: "
        "AGENTSTATE_CONTEXT_BUDGET_TOKENS.",
    )
    format = serializers.ChoiceField(choices=sorted(FORMS), required=False)
    recall = StringField(
        required=False,
        max_length=2000,
        help_text="Facts about the session's subject that fit these words are told.",
    )
    at_seq = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=BIGINT_MAX,
        help_text="The context as it was after this event.",
    )
    tools = CommaListField(
        required=False,
        help_text="The tools that the model has. Calls of others are told as text.",
    )
    keep = SeqListField(
        required=False, help_text="Seqs of messages or calls that must not be left out."
    )
    working_memory = CommaListField(
        required=False, help_text="Keys of the session's working memory to tell."
    )
    plan = serializers.BooleanField(
        required=False, help_text="false leaves out the plan of the run under way."
    )


class TokensOut(serializers.Serializer[Any]):
    """The total, and its parts: they sum to it. A part that is not there is left out
    but for the first two."""

    total = serializers.IntegerField()
    instructions = serializers.IntegerField()
    conversation = serializers.IntegerField()
    left_out = serializers.IntegerField(required=False)
    summaries = serializers.IntegerField(required=False)
    pinned_facts = serializers.IntegerField(required=False)
    recalled_facts = serializers.IntegerField(required=False)
    plan = serializers.IntegerField(required=False)
    working_memory = serializers.IntegerField(required=False)
    open_calls = serializers.IntegerField(required=False)
    note = serializers.IntegerField(
        required=False, help_text="What holds the texts before it together."
    )


class CoveredOut(serializers.Serializer[Any]):
    by = serializers.IntegerField(help_text="The seq of the compaction.")
    from_seq = serializers.IntegerField()
    up_to_seq = serializers.IntegerField()
    whole = serializers.ListField(
        child=serializers.IntegerField(),
        help_text="Seqs of the range that are here themselves, not by the summary.",
    )
    summary = serializers.ChoiceField(choices=["whole", "shortened", "left_out"])


class LeftOutOut(serializers.Serializer[Any]):
    from_seq = serializers.IntegerField()
    to_seq = serializers.IntegerField()
    events = serializers.IntegerField(help_text="Of any type, in the range.")
    fetch = serializers.CharField()


class NotShownOut(serializers.Serializer[Any]):
    seq = serializers.IntegerField()
    reason = serializers.ChoiceField(choices=["empty", "no_open_call", "reasoning"])


class ToldAsTextOut(serializers.Serializer[Any]):
    seq = serializers.IntegerField()
    name = serializers.CharField(help_text="Of the tool, which is not in `tools`.")


class ShortenedOut(serializers.Serializer[Any]):
    seq = serializers.IntegerField()
    tokens = serializers.IntegerField()
    shown_tokens = serializers.IntegerField()
    fetch = serializers.CharField()


class OpenCallOut(serializers.Serializer[Any]):
    seq = serializers.IntegerField()
    tool_call_id = serializers.CharField()
    name = serializers.CharField()
    status = serializers.ChoiceField(choices=["awaiting_human", "interrupted"])
    shown = serializers.ChoiceField(choices=["stand_in", "note"])


class ManifestOut(serializers.Serializer[Any]):
    at_seq = serializers.IntegerField()
    format = serializers.CharField()
    budget_tokens = serializers.IntegerField()
    counter = serializers.CharField()
    tokens = TokensOut()
    seqs = serializers.ListField(child=serializers.IntegerField())
    covered = CoveredOut(many=True)
    left_out = LeftOutOut(many=True)
    not_shown = NotShownOut(many=True)
    told_as_text = ToldAsTextOut(many=True)
    shortened = ShortenedOut(many=True)
    open_calls = OpenCallOut(many=True)
    facts = serializers.ListField(child=JSONObjectField())
    facts_left_out = serializers.CharField(allow_null=True)
    plan = JSONObjectField(allow_null=True)
    working_memory = serializers.ListField(child=JSONObjectField())


class ContextOut(serializers.Serializer[Any]):
    messages = serializers.ListField(
        child=JSONObjectField(), help_text="In the form that `format` names."
    )
    system = serializers.CharField(
        allow_null=True, help_text="The instructions, where they are no message."
    )
    manifest = ManifestOut()
