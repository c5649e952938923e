"""For operators: runs, steered through the services; the rest is to look at."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from access_app.admin import actor_of, projects_with, user_of
from access_app.pages import read_reason
from access_app.roles import Right
from agentstate import codec
from agentstate.errors import AppError
from runs_app.models import EffectRecord, Limit, RejectedCompletion, Run, Step
from runs_app.reads import attempts_json, read_results, why_run_waits
from runs_app.steering import steer_run
from sessions_app.admin import LookOnlyAdmin


@admin.register(Run)
class RunAdmin(LookOnlyAdmin):
    list_display = (
        "id",
        "project",
        "agent",
        "state",
        "step_count",
        "n_done",
        "n_retrying",
        "created_at",
        "state_since",
    )
    list_filter = ("state",)
    list_select_related = ("project",)
    ordering = ("-id",)
    search_fields = ("=id", "=session__id", "=key")
    search_help_text = "The id of a run or a session, or a run's key."
    exclude = ("error", "input", "session")
    readonly_fields = ("session_id", "error_text", "input_text", "waits_for")
    actions = ("cancel", "pause", "resume", "retry")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("error", "input")

    @admin.display(description="error")
    def error_text(self, run: Run) -> str:
        return codec.dumps(run.error)

    @admin.display(description="input")
    def input_text(self, run: Run) -> str:
        return codec.dumps(run.input)

    @admin.display(description="waits for")
    def waits_for(self, run: Run) -> str:
        return "\n".join(codec.dumps(reason) for reason in why_run_waits(run)[:20])

    def has_steer_permission(self, request: HttpRequest) -> bool:
        return self.has_right(request, Right.STEER)

    @admin.action(description="Cancel selected runs", permissions=["steer"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        self._steer(request, queryset, "cancel")

    @admin.action(description="Pause selected runs", permissions=["steer"])
    def pause(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        self._steer(request, queryset, "pause")

    @admin.action(description="Resume selected runs", permissions=["steer"])
    def resume(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        self._steer(request, queryset, "resume")

    @admin.action(description="Retry selected failed runs", permissions=["steer"])
    def retry(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        self._steer(request, queryset, "retry")

    def _steer(
        self, request: HttpRequest, queryset: QuerySet[Run], action: str
    ) -> None:
        """Do it to those whose project lets the user steer; tell of the others."""
        may_steer = self._steerable_projects(request)
        reason = read_reason(request)
        done, refused = 0, 0
        for run in queryset.only("id", "project_id"):
            if not may_steer(run.project_id):
                refused += 1
                continue
            try:
                steer_run(
                    run.project_id,
                    run.id,
                    action,
                    actor=actor_of(request),
                    reason=reason,
                )
                done += 1
            except AppError:
                refused += 1
        level = messages.WARNING if refused else messages.SUCCESS
        self.message_user(request, f"{action}: {done} done, {refused} refused", level)

    def _steerable_projects(self, request: HttpRequest) -> Callable[[UUID], bool]:
        if user_of(request).is_superuser:
            return lambda project_id: True
        steerable = set(projects_with(request, Right.STEER))
        return lambda project_id: project_id in steerable


@admin.register(Step)
class StepAdmin(LookOnlyAdmin):
    list_display = ("id", "run_id", "index", "tool", "state", "attempt", "state_since")
    ordering = ("-id",)
    search_fields = ("=id", "=run__id")
    search_help_text = "The id of a run or of a step."
    exclude = ("args", "error", "result_hash", "run", "session")
    readonly_fields = (
        "run_id",
        "session_id",
        "args_text",
        "result_text",
        "error_text",
        "attempts",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("args", "error")

    @admin.display(description="args")
    def args_text(self, step: Step) -> str:
        return codec.dumps(step.args)

    @admin.display(description="result")
    def result_text(self, step: Step) -> str:
        return codec.dumps(read_results([step]).get(step.result_seq))

    @admin.display(description="error")
    def error_text(self, step: Step) -> str:
        return codec.dumps(step.error)

    @admin.display(description="attempts")
    def attempts(self, step: Step) -> str:
        ended = attempts_json(step.project_id, step.id)
        return "\n".join(codec.dumps(attempt) for attempt in ended)


@admin.register(RejectedCompletion)
class RejectedCompletionAdmin(LookOnlyAdmin):
    """What workers reported too late."""

    list_display = ("created_at", "project", "run_id", "step_id", "worker", "code")
    list_select_related = ("project",)
    ordering = ("-id",)
    search_fields = ("=run_id", "=step_id")
    exclude = ("body", "session")
    readonly_fields = ("body_text",)

    @admin.display(description="body")
    def body_text(self, rejected: RejectedCompletion) -> str:
        return codec.dumps(rejected.body)


@admin.register(EffectRecord)
class EffectRecordAdmin(LookOnlyAdmin):
    list_display = ("key", "project", "state", "run_id", "step_id", "begun_at")
    list_filter = ("state",)
    list_select_related = ("project",)
    ordering = ("-id",)
    search_fields = ("=key", "=run_id")
    exclude = ("request", "result", "session")
    readonly_fields = ("request_text", "result_text")

    @admin.display(description="request")
    def request_text(self, record: EffectRecord) -> str:
        return codec.dumps(record.request)

    @admin.display(description="result")
    def result_text(self, record: EffectRecord) -> str:
        return codec.dumps(record.result)


@admin.register(Limit)
class LimitAdmin(LookOnlyAdmin):
    list_display = ("key", "project", "max_concurrent", "rate", "per_s")
    list_select_related = ("project",)
    ordering = ("-id",)
    search_fields = ("=key",)
