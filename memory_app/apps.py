from typing import Any

from django.apps import AppConfig
from django.db.models.signals import pre_migrate


class MemoryConfig(AppConfig):
    name = "memory_app"
    verbose_name = "Memory"

    def ready(self) -> None:
        from memory_app import checks  # noqa: F401  registers with Django
        from memory_app.event_types import EVENT_TYPES as OWN
        from sessions_app.event_types import EVENT_TYPES

        EVENT_TYPES.update(OWN)
        pre_migrate.connect(_ensure_extension, sender=self)


def _ensure_extension(using: str = "default", plan: Any = (), **kwargs: Any) -> None:
    """Before the first table is touched, so that a refusal leaves nothing half done."""
    from memory_app.extension import ensure_pgvector

    if plan:
        ensure_pgvector(using)
