"""What the session calls take and give. No writes here."""

from typing import Any

from rest_framework import serializers

from agentstate.api.params import CommaListField, PageParams, Params
from agentstate.api.serializers import (
    InstantField,
    JSONObjectField,
    JSONValueField,
    StrictSerializer,
    StringField,
)
from sessions_app.log import iso
from sessions_app.models import Session, SessionStatus

NAME_MAX = 255
TITLE_MAX = 500
METADATA_MAX_BYTES = 64 * 1024
BIGINT_MAX = 2**63 - 1


def name_field(**options: Any) -> StringField:
    return StringField(max_length=NAME_MAX, **options)


class LabelsField(serializers.DictField):
    """Up to 32 short strings by name, for filtering."""

    child = StringField(max_length=200, allow_blank=True)

    def to_internal_value(self, data: Any) -> dict[str, str]:
        labels: dict[str, str] = super().to_internal_value(data)
        if len(labels) > 32:
            raise serializers.ValidationError("at most 32 labels", code="too_many")
        for name in labels:
            StringField(max_length=100).run_validation(name)
        return labels


class CreateSessionIn(StrictSerializer):
    key = name_field(
        required=False,
        allow_null=True,
        help_text="Your own name for the session, unique in the project. Creating it "
        "again returns the same session with 200.",
    )
    agent = name_field(required=False, allow_blank=True)
    subject = name_field(
        required=False,
        allow_blank=True,
        help_text="Whom the session is about: a user, an account, a project of theirs.",
    )
    title = StringField(max_length=TITLE_MAX, required=False, allow_blank=True)
    labels = LabelsField(required=False)
    metadata = JSONObjectField(max_bytes=METADATA_MAX_BYTES, required=False)
    state = JSONObjectField(
        required=False, help_text="The first state; it becomes version 1."
    )
    expires_at = InstantField(
        required=False,
        allow_null=True,
        help_text="When the session is closed by itself.",
    )


class UpdateSessionIn(StrictSerializer):
    title = StringField(max_length=TITLE_MAX, required=False, allow_blank=True)
    agent = name_field(required=False, allow_blank=True)
    labels = LabelsField(required=False)
    metadata = JSONObjectField(max_bytes=METADATA_MAX_BYTES, required=False)
    expires_at = InstantField(required=False, allow_null=True)


class ReasonIn(StrictSerializer):
    reason = StringField(max_length=1000, required=False, allow_blank=True, default="")


class ForkIn(StrictSerializer):
    at_seq = serializers.IntegerField(
        min_value=0, max_value=BIGINT_MAX, help_text="The last event that both share."
    )
    key = name_field(required=False, allow_null=True)
    agent = name_field(required=False, allow_blank=True)
    title = StringField(max_length=TITLE_MAX, required=False, allow_blank=True)
    labels = LabelsField(required=False)
    metadata = JSONObjectField(max_bytes=METADATA_MAX_BYTES, required=False)
    expires_at = InstantField(required=False, allow_null=True)


class LockIn(StrictSerializer):
    holder = name_field(required=False, allow_blank=True, default="")
    ttl_s = serializers.IntegerField(
        required=False, default=30, min_value=1, max_value=3600
    )


class LockOut(serializers.Serializer[Any]):
    token = serializers.CharField(help_text="Send it as X-Lock-Token with each write.")
    fence = serializers.IntegerField(help_text="Grows by one with each new lease.")
    holder = serializers.CharField()
    until = serializers.DateTimeField()


class SessionOut(serializers.Serializer[Any]):
    """A session. `version` is that of its state; the state has a call of its own."""

    id = serializers.UUIDField()
    key = serializers.CharField(allow_null=True)
    agent = serializers.CharField()
    subject = serializers.CharField()
    title = serializers.CharField()
    status = serializers.ChoiceField(choices=SessionStatus.choices)
    labels = serializers.DictField(child=serializers.CharField())
    metadata = JSONValueField()
    state = JSONValueField(required=False, help_text="Not in lists.")
    version = serializers.IntegerField()
    last_seq = serializers.IntegerField()
    log_bytes = serializers.IntegerField()
    parent = serializers.UUIDField(allow_null=True)  # type: ignore[assignment]
    forked_from_seq = serializers.IntegerField(allow_null=True)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()
    closed_at = serializers.DateTimeField(allow_null=True)
    expires_at = serializers.DateTimeField(allow_null=True)


def session_json(session: Session, *, with_state: bool = True) -> dict[str, Any]:
    """Return a session as SessionOut describes it."""
    shown: dict[str, Any] = {
        "id": str(session.pk),
        "key": session.key,
        "agent": session.agent,
        "subject": session.subject,
        "title": session.title,
        "status": session.status,
        "labels": session.labels,
        "metadata": session.metadata,
    }
    if with_state:
        shown["state"] = session.state
    return shown | {
        "version": session.version,
        "last_seq": session.last_seq,
        "log_bytes": session.log_bytes,
        "parent": str(session.parent_id) if session.parent_id else None,
        "forked_from_seq": session.forked_from_seq,
        "created_at": iso(session.created_at),
        "updated_at": iso(session.updated_at),
        "closed_at": iso(session.closed_at),
        "expires_at": iso(session.expires_at),
    }


class SessionListParams(PageParams):
    key = name_field(required=False, help_text="The session of this key.")
    agent = name_field(required=False)
    subject = name_field(required=False)
    status = serializers.ChoiceField(choices=SessionStatus.choices, required=False)
    label = serializers.ListField(  # type: ignore[assignment]
        child=StringField(max_length=301),
        required=False,
        help_text="`name:value`; repeat it for several, all of which must hold.",
    )
    q = name_field(required=False, help_text="Part of the title or key, any case.")
    updated_since = InstantField(required=False)
    parent = serializers.UUIDField(  # type: ignore[assignment]
        required=False, help_text="The forks of a session."
    )

    def validate_label(self, values: list[str]) -> dict[str, str]:
        labels = {}
        for value in values:
            name, colon, wanted = value.partition(":")
            if not colon or not name:
                raise serializers.ValidationError(
                    "a label filter is name:value", code="invalid"
                )
            labels[name] = wanted
        return labels


class NewEventIn(StrictSerializer):
    id = serializers.UUIDField(
        required=False,
        help_text="Your own id: the same event sent again is stored once.",
    )
    type = serializers.CharField(help_text="See docs/events.md for the known types.")
    payload = JSONObjectField()
    occurred_at = InstantField(
        required=False, allow_null=True, help_text="Kept as data; orders nothing."
    )
    run = serializers.UUIDField(required=False, allow_null=True)
    step = serializers.UUIDField(required=False, allow_null=True)


class AppendIn(StrictSerializer):
    events = NewEventIn(many=True)
    expected_seq = serializers.IntegerField(
        required=False,
        allow_null=True,
        min_value=0,
        max_value=BIGINT_MAX,
        help_text="The last seq you saw; 409 seq_conflict if the log has moved on.",
    )


class AppendedEventOut(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    seq = serializers.IntegerField()


class AppendOut(serializers.Serializer[Any]):
    events = AppendedEventOut(many=True)
    last_seq = serializers.IntegerField()


class EventOut(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    seq = serializers.IntegerField()
    type = serializers.CharField()
    payload = JSONValueField()
    run = serializers.UUIDField(allow_null=True)
    step = serializers.UUIDField(allow_null=True)
    actor = serializers.CharField()
    occurred_at = serializers.DateTimeField(allow_null=True)
    created_at = serializers.DateTimeField()


class FeedEventOut(EventOut):
    session = serializers.UUIDField()
    agent = serializers.CharField()


class EventListParams(Params):
    after_seq = serializers.IntegerField(
        required=False,
        min_value=-1,
        max_value=BIGINT_MAX,
        help_text="-1 includes the record of the session's creation, at seq 0.",
    )
    before_seq = serializers.IntegerField(
        required=False, min_value=0, max_value=BIGINT_MAX
    )
    types = CommaListField(
        required=False, help_text="Comma separated; `message.*` names a family."
    )
    order = serializers.ChoiceField(choices=["asc", "desc"], required=False)
    last = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=1000,
        help_text="The newest N, oldest first. Not with order, after_seq or cursor.",
    )
    q = StringField(
        max_length=NAME_MAX,
        required=False,
        help_text="Part of the payload's JSON text, any case.",
    )
    cursor = serializers.CharField(required=False)
    limit = serializers.IntegerField(
        required=False, default=100, min_value=1, max_value=1000
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "last" in attrs:
            for name in ("order", "after_seq", "cursor"):
                if name in attrs:
                    raise serializers.ValidationError(
                        {name: "is not taken together with last"}, code="conflict"
                    )
        return attrs


class FeedParams(Params):
    after = serializers.CharField(
        required=False,
        help_text="A cursor of this feed; `latest` for what comes from now on.",
    )
    cursor = serializers.CharField(required=False, help_text="The same as `after`.")
    types = CommaListField(required=False)
    agent = name_field(required=False)
    session = serializers.UUIDField(required=False)
    limit = serializers.IntegerField(
        required=False, default=100, min_value=1, max_value=1000
    )


class StateParams(Params):
    at_seq = serializers.IntegerField(
        required=False,
        min_value=0,
        max_value=BIGINT_MAX,
        help_text="The state as it was after this event.",
    )


class StateOut(serializers.Serializer[Any]):
    state = JSONValueField()
    version = serializers.IntegerField()


class ExpectedVersionIn(StrictSerializer):
    expected_version = serializers.IntegerField(
        required=False, min_value=0, max_value=BIGINT_MAX
    )


class PutStateIn(ExpectedVersionIn):
    state = JSONObjectField()


class PatchStateIn(ExpectedVersionIn):
    """One of the two: `merge` (RFC 7396) or `patch` (RFC 6902)."""

    merge = JSONObjectField(required=False)
    patch = serializers.ListField(child=JSONObjectField(), required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("merge" in attrs) == ("patch" in attrs):
            raise serializers.ValidationError(
                "send either merge or patch", code="required"
            )
        return attrs


class ReplayParams(Params):
    at_seq = serializers.IntegerField(min_value=0, max_value=BIGINT_MAX)
    before_seq = serializers.IntegerField(
        required=False,
        min_value=1,
        max_value=BIGINT_MAX,
        help_text="Pages back through the conversation.",
    )
    limit = serializers.IntegerField(
        required=False, default=100, min_value=1, max_value=1000
    )


class ToolCallOut(serializers.Serializer[Any]):
    seq = serializers.IntegerField()
    tool_call_id = serializers.CharField()
    name = serializers.CharField()
    awaiting = serializers.CharField(allow_null=True)


class ReplayOut(serializers.Serializer[Any]):
    at_seq = serializers.IntegerField()
    state = JSONValueField()
    version = serializers.IntegerField()
    conversation = EventOut(many=True)
    conversation_before_seq = serializers.IntegerField(
        allow_null=True, help_text="As before_seq, the page before this one."
    )
    open_tool_calls = ToolCallOut(many=True)
    plan = JSONValueField(
        help_text="The run that had begun last, and its steps as they were then; null "
        "before the first run. `result_seq` names the event that holds a result."
    )
