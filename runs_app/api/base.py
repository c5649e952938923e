"""What the calls on runs and steps share."""

from typing import Any, ClassVar
from uuid import UUID

from access_app.api.views import ApiView
from access_app.scopes import RUNS_READ, RUNS_WRITE
from runs_app.errors import RunNotFound, StepNotFound
from runs_app.models import Run, Step
from runs_app.querysets import RunQuerySet
from runs_app.work import Reach
from sessions_app.models import Session

RUN_ID = "0199b2a0-9c01-7a44-9d3e-0f5a6b7c8d9e"
STEP_ID = "0199b2a0-9c02-7b55-8e4f-1a2b3c4d5e6f"
SESSION_ID = "0199b2a0-8a10-7d12-8f6e-5d1c0a9b7e42"


class RunCallView(ApiView):
    """A call on runs or steps: never beyond what the key is bound to."""

    scopes: ClassVar[dict[str, str]] = {
        "GET": RUNS_READ,
        "POST": RUNS_WRITE,
        "PUT": RUNS_WRITE,
        "PATCH": RUNS_WRITE,
        "DELETE": RUNS_WRITE,
    }

    @property
    def reach(self) -> Reach:
        return Reach(
            self.caller.project_id,
            self.caller.actor,
            self.caller.session_id,
            self.caller.subject,
        )

    def runs(self) -> RunQuerySet:
        found: RunQuerySet = Run.objects.in_project(self.caller.project_id)
        return found.visible_to(self.caller.subject, self.caller.session_id)

    def load_run(self, run_id: UUID) -> Run:
        run = self.runs().filter(id=run_id).first()
        if run is None:
            raise RunNotFound
        return run

    def check_run(self, run_id: UUID) -> None:
        """Raise RunNotFound for a run outside a bound key's reach."""
        if self.caller.is_bound:
            self.load_run(run_id)

    def load_step(self, step_id: UUID) -> Step:
        step = Step.objects.filter(
            project_id=self.caller.project_id, id=step_id
        ).first()
        if step is None or not self.may_see_session(step.session_id):
            raise StepNotFound
        return step

    def may_see_session(self, session_id: UUID) -> bool:
        if not self.caller.is_bound:
            return True
        return Session.objects.filter(
            **self.caller.session_filter() | {"id": session_id}
        ).exists() and self.caller.session_id in (None, session_id)

    def answer_session_id(self, response: Any) -> UUID | None:
        """The session whose content an answer may repeat, for erasure."""
        data = response.data
        found = data.get("session") if isinstance(data, dict) else None
        return UUID(found) if isinstance(found, str) else None
