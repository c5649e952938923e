"""Pages of sessions, under /p/<slug>/."""

from django.urls import path

from sessions_app import artifact_views as artifacts
from sessions_app import views

app_name = "sessions"
urlpatterns = [
    path("sessions/", views.session_list, name="list"),
    path("sessions/<uuid:session_id>/", views.session_page, name="page"),
    path("sessions/<uuid:session_id>/events/", views.log_rows, name="log"),
    path(
        "sessions/<uuid:session_id>/events/<int:seq>/", views.event_body, name="event"
    ),
    path(
        "sessions/<uuid:session_id>/events/<int:seq>/payload.json",
        views.event_download,
        name="event-download",
    ),
    path("sessions/<uuid:session_id>/past/", views.past, name="past"),
    path("sessions/<uuid:session_id>/state.json", views.state_download, name="state"),
    path("sessions/<uuid:session_id>/close/", views.close, name="close"),
    path("sessions/<uuid:session_id>/reopen/", views.reopen, name="reopen"),
    path("artifacts/", artifacts.artifact_list, name="artifacts"),
    path("settings/storage/", artifacts.storage, name="storage"),
    path("settings/storage/limit/", artifacts.limit_storage, name="limit-storage"),
    path("artifacts/<uuid:artifact_id>/", artifacts.artifact_page, name="artifact"),
    path(
        "artifacts/<uuid:artifact_id>/content",
        artifacts.artifact_content,
        name="artifact-content",
    ),
    path(
        "artifacts/<uuid:artifact_id>/delete/",
        artifacts.artifact_delete,
        name="artifact-delete",
    ),
    path("search/", views.search, name="search"),
]
