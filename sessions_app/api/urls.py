from django.urls import path

from sessions_app.api.artifacts import (
    ArtifactContentView,
    ArtifactLinkView,
    ArtifactListView,
    ArtifactView,
    SessionArtifactsView,
)
from sessions_app.api.events import EventListView
from sessions_app.api.feed import FeedStreamView, FeedView, SessionStreamView
from sessions_app.api.sessions import (
    CloseView,
    ForkView,
    LockView,
    ReopenView,
    ReplayView,
    SessionListView,
    SessionView,
)
from sessions_app.api.state import StateView
from sessions_app.api.working_memory import SessionMemoryView, working_memory_paths

SESSION = "sessions/<uuid:session_id>"

urlpatterns = [
    path(f"{SESSION}/events", EventListView.as_view()),  # first: the hottest call
    path("sessions", SessionListView.as_view()),
    path(SESSION, SessionView.as_view()),
    path(f"{SESSION}/close", CloseView.as_view()),
    path(f"{SESSION}/reopen", ReopenView.as_view()),
    path(f"{SESSION}/fork", ForkView.as_view()),
    path(f"{SESSION}/lock", LockView.as_view()),
    path(f"{SESSION}/replay", ReplayView.as_view()),
    path(f"{SESSION}/state", StateView.as_view()),
    path(f"{SESSION}/events/stream", SessionStreamView.as_view()),
    path(f"{SESSION}/artifacts", SessionArtifactsView.as_view()),
    path("artifacts", ArtifactListView.as_view()),
    path("artifacts/<uuid:artifact_id>", ArtifactView.as_view()),
    path("artifacts/<uuid:artifact_id>/content", ArtifactContentView.as_view()),
    path("artifacts/<uuid:artifact_id>/link", ArtifactLinkView.as_view()),
    *working_memory_paths(SESSION, "session", SessionMemoryView),
    path("events", FeedView.as_view()),
    path("events/stream", FeedStreamView.as_view()),
]
