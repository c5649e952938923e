"""The working memory of a run."""

from typing import ClassVar
from uuid import UUID

from access_app.scopes import RUNS_READ, RUNS_WORK
from runs_app.api.base import RunCallView
from runs_app.errors import RunNotFound, WrongState
from runs_app.states import RUN_ENDED
from runs_app.working_memory import note_memory
from sessions_app.working_memory import Scope


class RunMemoryView(RunCallView):
    """A call on a run's memory. An ended run has none, and takes none."""

    idempotency = "service"
    scopes: ClassVar[dict[str, str]] = {
        "GET": RUNS_READ,
        "PUT": RUNS_WORK,
        "POST": RUNS_WORK,
        "DELETE": RUNS_WORK,
    }

    @property
    def owned_scope(self) -> Scope | None:
        run_id: UUID = self.kwargs["run_id"]
        found = (
            self.runs()
            .filter(id=run_id)
            .values_list("session_id", "state", "session__last_seq")
            .first()
        )
        if found is None:
            raise RunNotFound
        session_id, state, last_seq = found
        if state in RUN_ENDED:
            if self.request.method == "GET":
                return None
            raise WrongState("The run has ended.", state=state)
        scope = Scope(self.caller.project_id, session_id, last_seq, run_id)
        if self.request.method != "GET":
            note_memory(scope)
        return scope
