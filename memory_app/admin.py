"""For reviewers: facts of their projects, changed through the services alone."""

from collections.abc import Iterable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from unfold.widgets import (  # type: ignore[import-untyped]
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from access_app.admin import (
    ProjectScopedAdmin,
    ReadOnlyAdmin,
    actor_of,
    projects_with,
    user_of,
)
from access_app.pages import read_reason
from access_app.roles import Right
from agentstate import codec
from agentstate.errors import AppError
from agentstate.uncounted import UncountedPaginator
from memory_app.bulk import Change, change_all
from memory_app.forgetting.services import forget_fact
from memory_app.looks import note_export, note_look, note_looks
from memory_app.models import Fact, FactRevision, Promotion, Receipt
from memory_app.provenance import sources_of
from memory_app.services import correct
from memory_app.spreadsheet import HEADER, csv_line, fact_cells

EDITED = ("fact", "key", "kind", "pinned", "expires_at", "note")


class FactForm(forms.ModelForm):  # type: ignore[type-arg]
    """A correction. It names the version that was shown: later changes are kept."""

    reason = forms.CharField(max_length=1000, widget=UnfoldAdminTextInputWidget)
    expected_version = forms.IntegerField(widget=forms.HiddenInput)

    class Meta:
        model = Fact
        fields = EDITED
        widgets = {
            "key": UnfoldAdminTextInputWidget,
            "fact": UnfoldAdminTextareaWidget(attrs={"rows": 4}),
            "note": UnfoldAdminTextareaWidget(attrs={"rows": 2}),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["expected_version"].initial = self.instance.version
        if "expires_at" in self.fields:  # not for those who may only look
            halves = self.fields["expires_at"].widget.widgets
            for half, name in zip(halves, ("date", "time"), strict=True):
                half.attrs["aria-label"] = f"Expires at, {name}"


class MemoryAdmin(ProjectScopedAdmin):
    """Rows of the projects whose memory the user may see; no list is counted."""

    right = Right.SEE_MEMORY
    paginator = UncountedPaginator
    show_full_result_count = False
    list_per_page = 50

    def in_projects_with(self, request: HttpRequest, right: Right) -> QuerySet[Any]:
        rows = self.get_queryset(request)
        if user_of(request).is_superuser:
            return rows
        return rows.filter(project__in=projects_with(request, right))

    def owned(self, request: HttpRequest) -> QuerySet[Any]:
        """The rows that the user may change: reviewing is a right of its own."""
        return self.in_projects_with(request, Right.REVIEW)

    def has_change_permission(
        self, request: HttpRequest, obj: Model | None = None
    ) -> bool:
        if obj is None:
            return self.has_right(request, Right.REVIEW)
        return self.owned(request).filter(pk=obj.pk).exists()

    def has_review_permission(self, request: HttpRequest) -> bool:
        return self.has_right(request, Right.REVIEW)

    def has_forget_permission(self, request: HttpRequest) -> bool:
        return self.has_right(request, Right.FORGET)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(
        self, request: HttpRequest, obj: Model | None = None
    ) -> bool:
        return False


@admin.register(Fact)
class FactAdmin(MemoryAdmin):
    form = FactForm
    list_display = (
        "fact",
        "subject",
        "kind",
        "status",
        "source_kind",
        "seen_count",
        "pinned",
        "created_at",
    )
    list_filter = ("status", "kind", "source_kind", "pinned")
    search_fields = ("=subject", "fact", "=id")
    ordering = ("-id",)
    fields = (
        *EDITED,
        "reason",
        "expected_version",
        "subject",
        "status",
        "source",
        "words",
        "seen_count",
        "settled_by",
        "created_by",
        "created_at",
        "history",
    )
    readonly_fields = (
        "subject",
        "status",
        "source",
        "words",
        "seen_count",
        "settled_by",
        "created_by",
        "created_at",
        "history",
    )
    actions = ("approve", "reject", "forget", "export_csv")

    def changelist_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Whose facts are listed is looked at, as on the pages."""
        response = super().changelist_view(request, *args, **kwargs)
        listed = getattr(response, "context_data", None) or {}
        if "cl" in listed:
            by_project: dict[Any, set[str]] = {}
            for fact in listed["cl"].result_list:
                by_project.setdefault(fact.project_id, set()).add(fact.subject)
            for project_id, subjects in by_project.items():
                note_looks(project_id, subjects, actor_of(request))
        return response

    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> Any:
        fact: Fact = kwargs["obj"]
        note_look(fact.project_id, fact.subject, actor_of(request))
        return super().render_change_form(request, context, *args, **kwargs)

    @admin.display(description="in these words")
    def words(self, fact: Fact) -> str:
        return "\n".join(
            f"{said.event.created_at:%Y-%m-%d %H:%M} UTC, event {said.event.seq}:"
            f" {said.event.summary.text}"
            for source in sources_of([fact], most=10).get(fact.id, ())
            for said in source.said
        )

    @admin.display(description="said in")
    def source(self, fact: Fact) -> str:
        if not fact.source_session:
            return f"{fact.source_kind}, outside of a session"
        seqs = ", ".join(map(str, fact.source_seqs)) or "no event named"
        return f"{fact.source_kind}, session {fact.source_session}, event {seqs}"

    @admin.display(description="history")
    def history(self, fact: Fact) -> str:
        revisions = FactRevision.objects.filter(
            project_id=fact.project_id, memory_id=fact.id
        ).order_by("-version")[:50]
        return "\n".join(
            f"{each.version}. {each.action} by {each.actor}: "
            f"{codec.dumps(each.changes)} {each.reason}"
            for each in revisions
        )

    def save_model(
        self, request: HttpRequest, obj: Fact, form: Any, change: bool
    ) -> None:
        given = form.cleaned_data
        saved = correct(
            obj.project_id,
            obj.id,
            {name: given[name] for name in form.changed_data if name in EDITED},
            expected_version=given["expected_version"],
            actor=actor_of(request),
            reason=given["reason"],
        )
        obj.version = saved.version

    @admin.action(description="Approve selected facts", permissions=["review"])
    def approve(self, request: HttpRequest, queryset: QuerySet[Fact]) -> None:
        self._change(request, queryset, "approve")

    @admin.action(description="Reject selected facts", permissions=["review"])
    def reject(self, request: HttpRequest, queryset: QuerySet[Fact]) -> None:
        self._change(request, queryset, "reject")

    def _change(self, request: HttpRequest, queryset: QuerySet[Fact], op: str) -> None:
        """Change the selected facts, each at the version just read: all or none."""
        allowed = self.owned(request).filter(pk__in=queryset.values("pk"))
        reason = read_reason(request)
        by_project: dict[Any, list[Change]] = {}
        for fact in allowed.only("project_id", "id", "version"):
            by_project.setdefault(fact.project_id, []).append(
                Change(op, fact.id, fact.version, reason)
            )
        try:
            for project_id, changes in by_project.items():
                change_all(project_id, changes, actor=actor_of(request))
        except AppError as exc:
            self.message_user(request, exc.detail, messages.ERROR)
            return
        count = sum(map(len, by_project.values()))
        self.message_user(request, f"{count} facts: {op}", messages.SUCCESS)

    @admin.action(description="Forget selected facts", permissions=["forget"])
    def forget(self, request: HttpRequest, queryset: QuerySet[Fact]) -> None:
        allowed = self.in_projects_with(request, Right.FORGET)
        reason, actor = read_reason(request), actor_of(request)
        forgotten = 0
        for fact in allowed.filter(pk__in=queryset.values("pk")):
            forget_fact(fact.project_id, fact.id, actor=actor, reason=reason)
            forgotten += 1
        level = messages.SUCCESS if forgotten else messages.WARNING
        self.message_user(request, f"{forgotten} facts forgotten", level)

    @admin.action(description="Export selected facts as CSV", permissions=["review"])
    def export_csv(
        self, request: HttpRequest, queryset: QuerySet[Fact]
    ) -> HttpResponse | StreamingHttpResponse:
        facts = self.owned(request).filter(pk__in=queryset.values("pk"))
        reason = read_reason(request)
        about = facts.order_by().values_list("project_id", "subject").distinct()
        for project_id, subject in about:
            note_export(project_id, subject, "csv", actor_of(request), reason)
        return StreamingHttpResponse(
            _csv_lines(facts.order_by("id").defer("terms")),
            content_type="text/csv; charset=utf-8",
            headers={"Content-Disposition": 'attachment; filename="facts.csv"'},
        )


def _csv_lines(facts: Iterable[Fact]) -> Iterable[str]:
    yield csv_line(HEADER)
    for fact in facts:
        yield csv_line(fact_cells(fact))


class LookOnly(ReadOnlyAdmin, MemoryAdmin):
    """Rows to look at."""


@admin.register(Promotion)
class PromotionAdmin(LookOnly):
    list_display = (
        "session_id",
        "project",
        "status",
        "extractor",
        "attempts",
        "error",
        "next_attempt_at",
        "created_at",
    )
    list_filter = ("status",)
    list_select_related = ("project",)
    search_fields = ("=session_id",)
    ordering = ("-id",)


@admin.register(Receipt)
class ReceiptAdmin(LookOnly):
    list_display = ("id", "project", "scope", "actor", "reason", "created_at")
    list_select_related = ("project",)
    ordering = ("-id",)
    exclude = ("subject_hash",)


@admin.register(FactRevision)
class FactRevisionAdmin(LookOnly):
    def render_change_form(
        self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any
    ) -> Any:
        revision: FactRevision = kwargs["obj"]
        note_look(revision.project_id, revision.subject, actor_of(request))
        return super().render_change_form(request, context, *args, **kwargs)

    list_display = ("memory_id", "version", "action", "actor", "reason", "created_at")
    search_fields = ("=memory_id",)
    ordering = ("-id",)
