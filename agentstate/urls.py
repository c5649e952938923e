"""Composition: where each app's pages and API are mounted."""

from django.contrib import admin
from django.urls import include, path

from agentstate import views

urlpatterns = [
    path("", views.home, name="home"),
    path("healthz", views.healthz),
    path("readyz", views.readyz),
    path("metrics", views.metrics),
    path("admin/", admin.site.urls),
    path("api/v1/", include("access_app.api.urls")),
    path("api/v1/", include("sessions_app.api.urls")),
]
