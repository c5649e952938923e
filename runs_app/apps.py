from django.apps import AppConfig


class RunsConfig(AppConfig):
    name = "runs_app"
    verbose_name = "Runs"

    def ready(self) -> None:
        from runs_app import event_types
        from runs_app.handoff_projection import handoff_differences
        from runs_app.past import plan_at
        from runs_app.projection import run_differences
        from sessions_app.projection import register_projection
        from sessions_app.replay import register_plan

        event_types.register()
        register_projection("runs", run_differences)
        register_projection("handoffs", handoff_differences)
        register_plan(plan_at)
