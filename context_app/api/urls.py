from django.urls import path

from context_app.api.views import ContextView

SESSION = "sessions/<uuid:session_id>"

urlpatterns = [path(f"{SESSION}/context", ContextView.as_view())]
