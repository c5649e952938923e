"""Every reusable read of sessions and events, chainable."""

from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Self
from uuid import UUID

from django.db import models
from django.db.models import F, Q, Value
from django.db.models.functions import Cast, Coalesce, Concat, Lower

from agentstate import codec

if TYPE_CHECKING:
    from sessions_app.models import Artifact, Event, Session  # noqa: F401

# The expression of the trigram index session_search_trgm: a search must spell it so.
SEARCH_TEXT = Lower(
    Concat(
        F("title"),
        Value(" ", models.TextField()),
        Coalesce(F("key"), Value("", models.TextField())),
    )
)


class SessionQuerySet(models.QuerySet["Session"]):
    def in_project(self, project_id: UUID) -> Self:
        return self.filter(project_id=project_id)

    def named(self, references: Iterable[str]) -> Self:
        """Sessions whose id or key is one of `references`."""
        keys, ids = list(references), []
        for text in keys:
            with suppress(ValueError):
                ids.append(UUID(text))
        return self.filter(Q(id__in=ids) | Q(key__in=keys))

    def visible_to(self, subject: str | None, session_id: UUID | None) -> Self:
        """Narrow to what a key bound to a subject or a session may see."""
        if subject is not None:
            self = self.filter(subject=subject)
        if session_id is not None:
            self = self.filter(id=session_id)
        return self

    def updated_since(self, at: datetime) -> Self:
        """Sessions changed at `at` or later.

        `active_at` is `updated_at` cut to the minute: it is indexed, and changes once a
        minute at most, so that an append stays a HOT update.
        """
        return self.filter(active_at__gte=at - timedelta(minutes=1), updated_at__gte=at)

    def active_between(self, begin: datetime, end: datetime) -> Self:
        """Sessions last changed from `begin` to before `end`; by the same index."""
        floor = begin - timedelta(minutes=1)
        return self.filter(
            active_at__gte=floor,
            active_at__lt=end,
            updated_at__gte=begin,
            updated_at__lt=end,
        )

    def with_labels(self, labels: dict[str, str]) -> Self:
        return self.filter(labels__contains=labels) if labels else self

    def matching(self, text: str) -> Self:
        """Sessions whose title or key contains `text`, in any case."""
        return self.alias(search_text=SEARCH_TEXT).filter(
            Q(search_text__contains=text.lower())
        )


class EventQuerySet(models.QuerySet["Event"]):
    def in_log(self, session_id: UUID) -> Self:
        return self.filter(session_id=session_id)

    def of_types(self, types: Iterable[str]) -> Self:
        """Events whose type is one of `types`; `message.*` names a whole family."""
        families = [name[:-1] for name in types if name.endswith(".*")]
        wanted = Q(type__in=[name for name in types if not name.endswith(".*")])
        for family in families:
            wanted |= Q(type__startswith=family)
        return self.filter(wanted)

    def containing(self, text: str) -> Self:
        """Events whose payload, as JSON text, contains `text` in any case.

        Reads the payloads one by one: narrow to one session first. All that lie in the
        store are among them, to be looked into by `sessions_app.payloads.holds`.
        """
        spelt = codec.dumps(text)[1:-1]
        return self.alias(payload_text=Cast("payload", models.TextField())).filter(
            Q(payload_text__icontains=spelt) | Q(blob_id__isnull=False)
        )

    def stored_text(self) -> "models.QuerySet[Event, tuple[str, UUID | None]]":
        """Pairs of a payload's JSON text and the blob for which it is a stub, or None.

        `sessions_app.payloads.whole_texts` makes payloads of them.
        """
        return self.values_list(Cast("payload", models.TextField()), "blob_id")

    def to_be_moved(self, above_bytes: int) -> Self:
        """Events whose payload lies in the row and is larger; the largest first."""
        return self.filter(
            blob_id__isnull=True, payload_bytes__gt=above_bytes
        ).order_by("-payload_bytes")


class ArtifactQuerySet(models.QuerySet["Artifact"]):
    def in_project(self, project_id: UUID) -> Self:
        return self.filter(project_id=project_id)

    def live(self) -> Self:
        """Without the deleted."""
        return self.filter(deleted_seq=None)

    def seen_in(self, session: "Session") -> Self:
        """The artifacts of a session's log: its own, and those a fork began with."""
        found = Q(session_id=session.pk)
        for ancestor, upto in session.lineage:
            found |= Q(session_id=UUID(ancestor), seq__lte=upto)
        return self.filter(found, project_id=session.project_id)

    def of_subject(self, subject: str | None) -> Self:
        """Narrow to the sessions of one subject; None does not narrow."""
        return self if subject is None else self.filter(session__subject=subject)
