"""Composition: where each app's pages and API are mounted."""

from typing import Any

from django.contrib import admin
from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView

from agentstate import views
from agentstate.api import errors

# Anyone may read what the API is; a key is needed to use it.
OPEN: dict[str, Any] = {"authentication_classes": [], "permission_classes": []}

urlpatterns = [
    path("", views.home, name="home"),
    path("healthz", views.healthz),
    path("readyz", views.readyz),
    path("metrics", views.metrics),
    path("admin/", admin.site.urls),
    path("api/v1/schema", SpectacularAPIView.as_view(**OPEN), name="schema"),
    path("api/v1/docs", SpectacularSwaggerView.as_view(**OPEN), name="docs"),
    path("api/v1/", include("access_app.api.urls")),
    path("api/v1/", include("sessions_app.api.urls")),
    path("api/v1/", include("runs_app.api.urls")),
    path("api/v1/", include("memory_app.api.urls")),
]

# Under /api/ problem+json, elsewhere Django's own pages.
handler400 = errors.handler400
handler403 = errors.handler403
handler404 = errors.handler404
handler500 = errors.handler500
