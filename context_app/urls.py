"""Pages of contexts, under /p/<slug>/."""

from django.urls import path

from context_app import views

app_name = "context"
urlpatterns = [
    path("sessions/<uuid:session_id>/context/", views.preview, name="preview"),
]
