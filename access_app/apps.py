from django.apps import AppConfig


class AccessConfig(AppConfig):
    name = "access_app"
    verbose_name = "Access"

    def ready(self) -> None:
        from access_app import callers
        from access_app.api import schema  # noqa: F401  registers with drf-spectacular

        callers.write_uses_after_each_request()
