"""For operators: sessions and their logs, to look at. Writes go through the API."""

from typing import Any
from uuid import UUID

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from access_app.admin import ProjectScopedAdmin
from access_app.roles import Right
from agentstate import codec
from agentstate.uncounted import UncountedPaginator
from sessions_app.errors import ContentMissing, StorageUnavailable
from sessions_app.models import Artifact, Event, Session
from sessions_app.payloads import text_of


class LookOnlyAdmin(ProjectScopedAdmin):
    """No row is added, changed or deleted here; no list is counted."""

    right = Right.SEE_PAYLOADS
    paginator = UncountedPaginator
    show_full_result_count = False
    list_per_page = 50

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Session)
class SessionAdmin(LookOnlyAdmin):
    list_display = (
        "__str__",
        "project",
        "agent",
        "subject",
        "status",
        "last_seq",
        "updated_at",
    )
    list_filter = ("status",)
    list_select_related = ("project",)
    ordering = ("-id",)
    search_fields = ("=id", "=key", "=subject")
    exclude = ("state", "metadata", "lock_token", "parent")
    readonly_fields = ("state_text", "metadata_text")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("state", "metadata")

    @admin.display(description="state")
    def state_text(self, session: Session) -> str:
        return codec.dumps(session.state)

    @admin.display(description="metadata")
    def metadata_text(self, session: Session) -> str:
        return codec.dumps(session.metadata)


@admin.register(Artifact)
class ArtifactAdmin(LookOnlyAdmin):
    list_display = ("__str__", "project", "media_type", "size", "actor", "created_at")
    list_select_related = ("project",)
    ordering = ("-id",)
    search_fields = ("=id", "=session__id", "=name")
    search_help_text = "The id of an artifact or a session, or a name."
    exclude = ("metadata", "session", "blob")
    readonly_fields = ("session_id", "metadata_text")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("metadata")

    @admin.display(description="metadata")
    def metadata_text(self, artifact: Artifact) -> str:
        return codec.dumps(artifact.metadata)


@admin.register(Event)
class EventAdmin(LookOnlyAdmin):
    list_display = ("seq", "type", "session_id", "actor", "created_at")
    ordering = ("-id",)
    search_fields = ("session_id",)  # by get_search_results
    search_help_text = "The id of a session."
    exclude = ("payload", "xid", "gen")
    readonly_fields = ("payload_text",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("payload")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """By a session's project and id: the index of a log begins with both."""
        try:
            id_ = UUID(search_term.strip()) if search_term.strip() else None
        except ValueError:
            return queryset.none(), False
        if id_ is None:
            return queryset, False
        project = Session.objects.filter(pk=id_).values_list("project_id").first()
        if project is None:
            return queryset.none(), False
        return queryset.filter(project_id=project[0], session_id=id_), False

    @admin.display(description="payload")
    def payload_text(self, event: Event) -> str:
        row = codec.dumps(event.payload)
        try:
            return text_of(event.project_id, row, event.blob_id)
        except (StorageUnavailable, ContentMissing) as exc:
            return exc.detail
