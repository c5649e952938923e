from django.urls import path

from context_app.api.compaction import (
    CompactionDetailView,
    CompactionListView,
    CompactView,
)
from context_app.api.views import ContextView

SESSION = "sessions/<uuid:session_id>"

urlpatterns = [
    path(f"{SESSION}/context", ContextView.as_view()),
    path(f"{SESSION}/compact", CompactView.as_view()),
    path(f"{SESSION}/compactions", CompactionListView.as_view()),
    path(f"{SESSION}/compactions/<int:seq>", CompactionDetailView.as_view()),
]
