from django.urls import path

from agentstate.api.paths import ANY_TEXT
from memory_app.api.facts import (
    ApproveView,
    ChangeFactsView,
    FactListView,
    FactView,
    HistoryView,
    RejectView,
)
from memory_app.api.forget import (
    ExportSubjectView,
    ForgetManyView,
    ForgetSubjectView,
    ForgetView,
    ReceiptListView,
)
from memory_app.api.promotions import (
    PromoteView,
    PromotionListView,
    PromotionView,
    RetryPromotionView,
)
from memory_app.api.recall import RecallView, SearchView
from memory_app.api.subjects import ConsolidateView, ImportView, SubjectListView

FACT = "memory/<uuid:fact_id>"
SUBJECT = f"subjects/<{ANY_TEXT}:subject>"

urlpatterns = [
    path("memory", FactListView.as_view()),
    path("memory/recall", RecallView.as_view()),
    path("memory/search", SearchView.as_view()),
    path("memory/bulk", ChangeFactsView.as_view()),
    path(FACT, FactView.as_view()),
    path(f"{FACT}/approve", ApproveView.as_view()),
    path(f"{FACT}/reject", RejectView.as_view()),
    path(f"{FACT}/history", HistoryView.as_view()),
    path(f"{FACT}/forget", ForgetView.as_view()),
    path("memory/forget", ForgetManyView.as_view()),
    path("memory/receipts", ReceiptListView.as_view()),
    path("memory/import", ImportView.as_view()),
    path("sessions/<uuid:session_id>/promote", PromoteView.as_view()),
    path("promotions", PromotionListView.as_view()),
    path("promotions/<uuid:promotion_id>", PromotionView.as_view()),
    path("promotions/<uuid:promotion_id>/retry", RetryPromotionView.as_view()),
    path("subjects", SubjectListView.as_view()),
    path(f"{SUBJECT}/consolidate", ConsolidateView.as_view()),
    path(f"{SUBJECT}/forget", ForgetSubjectView.as_view()),
    path(f"{SUBJECT}/export", ExportSubjectView.as_view()),
]
