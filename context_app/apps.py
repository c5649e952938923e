from django.apps import AppConfig


class ContextConfig(AppConfig):
    name = "context_app"
    verbose_name = "Context"
