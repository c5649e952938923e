"""Composition: where each app's pages and API are mounted."""

from django.contrib import admin
from django.urls import include, path

from access_app import views as access
from agentstate import views
from agentstate.api import errors
from runs_app.api.urls import work_patterns
from sessions_app import artifact_views as artifacts

urlpatterns = [
    path("api/v1/steps/", include(work_patterns)),  # first: the hottest calls
    path("api/v1/", include("sessions_app.api.urls")),
    path("", access.home, name="home"),
    path("sign-in/", access.sign_in, name="sign-in"),
    path("sign-in/single/", access.single_sign_on_begin, name="single-sign-on"),
    path(
        "sign-in/single/return/",
        access.single_sign_on_return,
        name="single-sign-on-return",
    ),
    path("sign-out/", access.sign_out, name="sign-out"),
    path("p/<slug:slug>/", views.overview, name="overview"),
    path("p/<slug:slug>/", include("access_app.urls")),
    path("p/<slug:slug>/", include("sessions_app.urls")),
    path("p/<slug:slug>/", include("runs_app.urls")),
    path("p/<slug:slug>/", include("memory_app.urls")),
    path("p/<slug:slug>/", include("context_app.urls")),
    path("artifacts/<str:token>", artifacts.linked_artifact, name="artifact-link"),
    path("healthz", views.healthz),
    path("readyz", views.readyz),
    path("metrics", views.metrics),
    # One way in, which counts tries; the admin's own form would not.
    path("admin/login/", access.admin_sign_in),
    path("admin/logout/", access.sign_out),
    path("admin/", admin.site.urls),
    path("api/v1/schema", views.schema, name="schema"),
    path("api/v1/docs", views.DocsView.as_view(), name="docs"),
    path("api/v1/", include("access_app.api.urls")),
    path("api/v1/", include("context_app.api.urls")),
    path("api/v1/", include("runs_app.api.urls")),
    path("api/v1/", include("memory_app.api.urls")),
]

# For what programs call problem+json, elsewhere Django's own pages.
handler400 = errors.handler400
handler403 = errors.handler403
handler404 = errors.handler404
handler500 = errors.handler500
