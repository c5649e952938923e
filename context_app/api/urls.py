from django.urls import path

from context_app.api.compaction import (
    CompactionDetailView,
    CompactionListView,
    CompactView,
)
from context_app.api.handoffs import (
    AcceptView,
    DeclineView,
    HandoffView,
    ResultView,
    RunHandoffsView,
    SuggestView,
    TreeView,
)
from context_app.api.views import ContextView

SESSION = "sessions/<uuid:session_id>"
RUN = "runs/<uuid:run_id>"
HANDOFF = "handoffs/<uuid:handoff_id>"

urlpatterns = [
    path(f"{SESSION}/context", ContextView.as_view()),
    path(f"{SESSION}/compact", CompactView.as_view()),
    path(f"{SESSION}/compactions", CompactionListView.as_view()),
    path(f"{SESSION}/compactions/<int:seq>", CompactionDetailView.as_view()),
    path(f"{RUN}/handoffs", RunHandoffsView.as_view()),
    path(f"{RUN}/handoffs/suggest", SuggestView.as_view()),
    path(f"{RUN}/tree", TreeView.as_view()),
    path(HANDOFF, HandoffView.as_view()),
    path(f"{HANDOFF}/accept", AcceptView.as_view()),
    path(f"{HANDOFF}/decline", DeclineView.as_view()),
    path(f"{HANDOFF}/result", ResultView.as_view()),
]
