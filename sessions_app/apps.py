from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class SessionsConfig(AppConfig):
    name = "sessions_app"
    verbose_name = "Sessions"

    def ready(self) -> None:
        from sessions_app.artifacts.projection import artifact_differences
        from sessions_app.projection import register_projection, session_differences

        post_migrate.connect(_begin_generation, sender=self)
        register_projection("sessions", session_differences)
        register_projection("artifacts", artifact_differences)


def _begin_generation(plan: Any = None, **kwargs: Any) -> None:
    from sessions_app.feed import begin_generation

    begin_generation()
