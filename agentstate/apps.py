from django.apps import AppConfig


class AgentStateConfig(AppConfig):
    name = "agentstate"
    verbose_name = "AgentState"

    def ready(self) -> None:
        from agentstate import checks  # noqa: F401
