"""What the memory calls take and give."""

from typing import Any

from rest_framework import serializers

from agentstate.api.params import PageParams, Params
from agentstate.api.serializers import (
    InstantField,
    JSONObjectField,
    JSONValueField,
    StrictSerializer,
    StringField,
)
from memory_app.models import Kind, SourceKind, Status
from memory_app.recall.search import Hit
from memory_app.services import NewFact
from memory_app.services.told import FACT_MAX, METADATA_MAX_BYTES, NAME_MAX, NOTE_MAX
from memory_app.shown import fact_json

BIGINT_MAX = 2**63 - 1
FACTS_PER_CALL = 1000


def subject_field(**options: Any) -> StringField:
    return StringField(
        max_length=NAME_MAX,
        help_text="Whom it is about: a user, an account, a project of theirs.",
        **options,
    )


class SourceIn(StrictSerializer):
    kind = serializers.ChoiceField(
        choices=SourceKind.choices,
        required=False,
        help_text="Who says so. Default: user.",
    )
    session = StringField(
        max_length=NAME_MAX,
        required=False,
        help_text="A session's id or key; any other name of your own is kept as such.",
    )
    seqs = serializers.ListField(
        child=serializers.IntegerField(min_value=0, max_value=BIGINT_MAX),
        max_length=100,
        required=False,
        help_text="The events that it was said in.",
    )
    said_at = InstantField(required=False, allow_null=True)


class FactFieldsIn(StrictSerializer):
    """What a fact is made of, beside its subject."""

    fact = StringField(max_length=FACT_MAX)
    key = StringField(
        max_length=NAME_MAX,
        required=False,
        allow_blank=True,
        help_text="What it answers, such as `address`. Two facts of one key contradict "
        "each other. Left out: taken from the wording, where that is certain.",
    )
    kind = serializers.ChoiceField(choices=Kind.choices, required=False)
    source = SourceIn(required=False)  # type: ignore[assignment]
    confidence = serializers.FloatField(min_value=0, max_value=1, required=False)
    pinned = serializers.BooleanField(required=False)
    metadata = JSONObjectField(max_bytes=METADATA_MAX_BYTES, required=False)
    valid_from = InstantField(
        required=False, allow_null=True, help_text="Since when it holds. Default: now."
    )
    valid_to = InstantField(required=False, allow_null=True)
    expires_at = InstantField(required=False, allow_null=True)
    note = StringField(max_length=NOTE_MAX, required=False, allow_blank=True)

    def validate_fact(self, value: str) -> str:
        if not value.strip():
            raise serializers.ValidationError("this may not be blank", code="blank")
        return value

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        begins, ends = attrs.get("valid_from"), attrs.get("valid_to")
        if begins and ends and ends < begins:
            raise serializers.ValidationError(
                {"valid_to": "this is before valid_from"}, code="out_of_range"
            )
        return attrs


class RememberIn(FactFieldsIn):
    """One fact; or, with `facts`, several about one subject, all or none."""

    subject = subject_field(required=False)
    fact = StringField(max_length=FACT_MAX, required=False)
    facts = FactFieldsIn(many=True, required=False)

    def validate_fact(self, value: str) -> str:
        return FactFieldsIn.validate_fact(self, value)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        super().validate(attrs)
        if ("fact" in attrs) == ("facts" in attrs):
            raise serializers.ValidationError(
                {"fact": "send either fact or facts"}, code="required"
            )
        given = attrs.get("facts", ())
        if "facts" in attrs and not 1 <= len(given) <= FACTS_PER_CALL:
            raise serializers.ValidationError(
                {"facts": f"must hold 1 to {FACTS_PER_CALL} facts"},
                code="out_of_range",
            )
        if "facts" in attrs and set(attrs) - {"facts", "subject", "source"}:
            raise serializers.ValidationError(
                {"facts": "with facts, only subject and source stand beside"},
                code="conflict",
            )
        return attrs


FACT_FIELDS = (
    "fact",
    "key",
    "kind",
    "confidence",
    "pinned",
    "metadata",
    "valid_from",
    "valid_to",
    "expires_at",
    "note",
)


def new_fact(
    subject: str, given: dict[str, Any], session: str, agent: str = ""
) -> NewFact:
    """Return the fact that a body describes. `session` is as it is stored, `agent` the
    agent that talked there."""
    source = given.get("source", {})
    fields = {name: given[name] for name in FACT_FIELDS if name in given}
    return NewFact(
        subject=subject,
        source_kind=source.get("kind", SourceKind.USER),
        session=session,
        agent=agent,
        seqs=tuple(source.get("seqs", ())),
        said_at=source.get("said_at"),
        **fields,
    )


class ExpectedVersionIn(StrictSerializer):
    expected_version = serializers.IntegerField(
        required=False, min_value=1, max_value=BIGINT_MAX
    )
    reason = StringField(max_length=1000, required=False, allow_blank=True, default="")


class CorrectIn(ExpectedVersionIn):
    fact = StringField(max_length=FACT_MAX, required=False)
    key = StringField(max_length=NAME_MAX, required=False, allow_blank=True)
    kind = serializers.ChoiceField(choices=Kind.choices, required=False)
    confidence = serializers.FloatField(min_value=0, max_value=1, required=False)
    pinned = serializers.BooleanField(required=False)
    metadata = JSONObjectField(max_bytes=METADATA_MAX_BYTES, required=False)
    valid_from = InstantField(required=False)
    valid_to = InstantField(required=False, allow_null=True)
    expires_at = InstantField(required=False, allow_null=True)
    note = StringField(max_length=NOTE_MAX, required=False, allow_blank=True)

    def validate_fact(self, value: str) -> str:
        if not value.strip():
            raise serializers.ValidationError("this may not be blank", code="blank")
        return value


class FactChangeIn(CorrectIn):
    id = serializers.UUIDField()
    op = serializers.ChoiceField(choices=["correct", "approve", "reject"])


class FactChangesIn(StrictSerializer):
    """Changes of many facts, all or none."""

    items = FactChangeIn(many=True)
    reason = StringField(max_length=1000, required=False, allow_blank=True, default="")

    def validate_items(self, value: list[Any]) -> list[Any]:
        if not 1 <= len(value) <= FACTS_PER_CALL:
            raise serializers.ValidationError(
                f"must hold 1 to {FACTS_PER_CALL} items", code="out_of_range"
            )
        return value


class SourceOut(serializers.Serializer[Any]):
    kind = serializers.CharField()
    session = serializers.CharField(allow_null=True)
    agent = serializers.CharField(help_text="That talked in this session.")
    seqs = serializers.ListField(child=serializers.IntegerField())


class FactOut(serializers.Serializer[Any]):
    """A fact. `version` is what a change names, as If-Match or expected_version."""

    id = serializers.UUIDField()
    subject = serializers.CharField()
    fact = serializers.CharField()
    key = serializers.CharField()
    kind = serializers.ChoiceField(choices=Kind.choices)
    status = serializers.ChoiceField(choices=Status.choices)
    version = serializers.IntegerField()
    source = SourceOut()  # type: ignore[assignment]
    seen_count = serializers.IntegerField(help_text="How often it was said.")
    confidence = serializers.FloatField()
    pinned = serializers.BooleanField()
    metadata = JSONValueField()
    valid_from = serializers.DateTimeField()
    valid_to = serializers.DateTimeField(allow_null=True)
    expires_at = serializers.DateTimeField(allow_null=True)
    superseded_by = serializers.UUIDField(allow_null=True)
    duplicate_of = serializers.UUIDField(allow_null=True)
    conflicts_with = serializers.UUIDField(allow_null=True)
    note = serializers.CharField()
    settled_by = serializers.CharField(
        help_text="The person or key whose correction this is; promotion respects it."
    )
    embedding = serializers.CharField(help_text="ok, or what went wrong.")
    created_by = serializers.CharField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()


class RememberedOut(FactOut):
    outcome = serializers.ChoiceField(
        choices=["created", "seen", "outdated", "review"],
        help_text="seen: it was known. outdated: something newer is known. review: it "
        "waits for a person.",
    )
    superseded = serializers.UUIDField(
        allow_null=True, help_text="The fact that this one took the place of."
    )


class FactListOut(serializers.Serializer[Any]):
    items = FactOut(many=True)


class RememberedListOut(serializers.Serializer[Any]):
    items = RememberedOut(many=True)


class FactListParams(PageParams):
    subject = subject_field(required=False)
    status = serializers.ChoiceField(choices=Status.choices, required=False)
    kind = serializers.ChoiceField(choices=Kind.choices, required=False)
    key = StringField(max_length=NAME_MAX, required=False)
    session = StringField(max_length=NAME_MAX, required=False)
    pinned = serializers.BooleanField(required=False)
    q = StringField(
        max_length=NAME_MAX, required=False, help_text="Part of the text, any case."
    )


class RecallParams(Params):
    subject = subject_field(required=False)
    q = StringField(max_length=FACT_MAX, required=False, allow_blank=True, default="")
    limit = serializers.IntegerField(
        required=False, default=20, min_value=1, max_value=200
    )
    mode = serializers.ChoiceField(
        choices=["hybrid", "text", "vector"],
        required=False,
        default="hybrid",
        help_text="text finds only what holds a word of the query, to the letter.",
    )
    as_of = InstantField(
        required=False, help_text="What held at that time, superseded since or not."
    )
    kind = serializers.ListField(
        child=serializers.ChoiceField(choices=Kind.choices), required=False
    )
    min_confidence = serializers.FloatField(
        required=False, default=0, min_value=0, max_value=1
    )


class HitReasonOut(serializers.Serializer[Any]):
    parts = serializers.DictField(child=serializers.FloatField())
    terms = serializers.ListField(child=serializers.CharField())
    summary = serializers.CharField()


class HitOut(FactOut):
    score = serializers.FloatField()
    why = HitReasonOut()
    similar = FactOut(many=True)


class RecallOut(serializers.Serializer[Any]):
    items = HitOut(many=True)
    mode = serializers.CharField()
    model = serializers.CharField(allow_null=True)
    degraded = serializers.CharField(
        help_text="Empty, or what could not be used for this answer."
    )


def hit_json(hit: Hit) -> dict[str, Any]:
    return fact_json(hit.fact) | {
        "score": round(hit.score, 4),
        "why": hit.why,
        "similar": [fact_json(fact) for fact in hit.similar],
    }


class RevisionOut(serializers.Serializer[Any]):
    version = serializers.IntegerField()
    action = serializers.CharField()
    changes = JSONValueField(help_text="Each changed field: its value before, after.")
    actor = serializers.CharField()
    reason = serializers.CharField()
    created_at = serializers.DateTimeField()


class SaidOut(serializers.Serializer[Any]):
    kind = serializers.CharField()
    session = serializers.CharField(allow_null=True)
    seqs = serializers.ListField(child=serializers.IntegerField())
    said_at = serializers.DateTimeField()
    actor = serializers.CharField()


class HistoryOut(serializers.Serializer[Any]):
    items = RevisionOut(many=True)
    next = serializers.CharField(allow_null=True)
    sources = SaidOut(many=True, help_text="The newest hundred.")
