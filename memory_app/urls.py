"""Pages of memory, under /p/<slug>/. A subject stands in the query: it is any text."""

from django.urls import path

from memory_app import views

app_name = "memory"
urlpatterns = [
    path("memory/", views.memory, name="memory"),
    path("memory/policy/", views.policy, name="policy"),
    path("memory/policy/change/", views.change_policy, name="change-policy"),
    path("memory/subject/", views.subject, name="subject"),
    path("memory/facts/bulk/", views.bulk, name="bulk"),
    path("memory/facts/<uuid:fact_id>/", views.fact, name="fact"),
    path("memory/facts/<uuid:fact_id>/correct/", views.correct, name="correct"),
    path("memory/facts/<uuid:fact_id>/decide/", views.decide, name="decide"),
    path("memory/facts/<uuid:fact_id>/forget/", views.forget, name="forget"),
    path("memory/forget/", views.forgetting, name="forgetting"),
    path("memory/forget/do/", views.forget_all, name="forget-all"),
    path("memory/export/", views.export, name="export"),
    path("memory/receipts/<uuid:receipt_id>/", views.receipt, name="receipt"),
]
