from django.urls import path

from runs_app.api.effects import BeginEffectView, CompleteEffectView, EffectView
from runs_app.api.limits import BulkView, LimitListView, LimitView
from runs_app.api.runs import (
    AgainView,
    CancelRunView,
    PauseRunView,
    PlanView,
    PolicyView,
    RejectedView,
    ResumeRunView,
    RetryRunView,
    RunListView,
    RunStepsView,
    RunView,
    SignalView,
    WhyView,
)
from runs_app.api.steps import (
    ApproveView,
    AttemptsView,
    CancelStepView,
    InboxView,
    RejectView,
    ResolveView,
    RetryStepView,
    SkipView,
    StepView,
    StepWhyView,
)
from runs_app.api.work import (
    ClaimView,
    CompleteView,
    FailView,
    HeartbeatView,
    ReleaseView,
)
from runs_app.api.working_memory import RunMemoryView
from sessions_app.api.working_memory import working_memory_paths

RUN = "runs/<uuid:run_id>"
STEP = "steps/<uuid:step_id>"

# Mounted by themselves, before all else: the hottest calls, by their whole names.
work_patterns = [
    path("claim", ClaimView.as_view()),
    path("complete", CompleteView.as_view()),
    path("heartbeat", HeartbeatView.as_view()),
    path("fail", FailView.as_view()),
    path("release", ReleaseView.as_view()),
]
urlpatterns = [
    path("runs", RunListView.as_view()),
    path("runs/bulk", BulkView.as_view()),
    path(RUN, RunView.as_view()),
    path(f"{RUN}/steps", RunStepsView.as_view()),
    path(f"{RUN}/plan", PlanView.as_view()),
    path(f"{RUN}/why", WhyView.as_view()),
    path(f"{RUN}/cancel", CancelRunView.as_view()),
    path(f"{RUN}/pause", PauseRunView.as_view()),
    path(f"{RUN}/resume", ResumeRunView.as_view()),
    path(f"{RUN}/retry", RetryRunView.as_view()),
    path(f"{RUN}/again", AgainView.as_view()),
    path(f"{RUN}/signals/<str:name>", SignalView.as_view()),
    path(f"{RUN}/rejected-completions", RejectedView.as_view()),
    *working_memory_paths(RUN, "run", RunMemoryView),
    path("sessions/<uuid:session_id>/run-policy", PolicyView.as_view()),
    path(STEP, StepView.as_view()),
    path(f"{STEP}/attempts", AttemptsView.as_view()),
    path(f"{STEP}/why", StepWhyView.as_view()),
    path(f"{STEP}/approve", ApproveView.as_view()),
    path(f"{STEP}/reject", RejectView.as_view()),
    path(f"{STEP}/skip", SkipView.as_view()),
    path(f"{STEP}/cancel", CancelStepView.as_view()),
    path(f"{STEP}/retry", RetryStepView.as_view()),
    path(f"{STEP}/resolve", ResolveView.as_view()),
    path("approvals", InboxView.as_view()),
    path("effects/<str:key>", EffectView.as_view()),
    path("effects/<str:key>/begin", BeginEffectView.as_view()),
    path("effects/<str:key>/complete", CompleteEffectView.as_view()),
    path("limits", LimitListView.as_view()),
    path("limits/<str:key>", LimitView.as_view()),
]
