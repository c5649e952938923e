"""What can go wrong with a run or a step, each with its stable code."""

from agentstate.errors import AppError, FieldError, NotFound


class RunNotFound(NotFound):
    """There is no such run in this project."""

    code = "run_not_found"


class StepNotFound(NotFound):
    """There is no such step in this project."""

    code = "step_not_found"


class EffectNotFound(NotFound):
    """Nothing has been begun under this key."""

    code = "effect_not_found"


class LimitNotFound(NotFound):
    """There is no limit of this key."""

    code = "limit_not_found"


class HandoffNotFound(NotFound):
    """There is no such handoff in this project, or not for this key."""

    code = "handoff_not_found"


class HandoffTaken(AppError):
    """Another agent has accepted this handoff."""

    code, status = "handoff_taken", 409


class HandoffEnded(AppError):
    """This handoff is over; nothing was changed."""

    code, status = "handoff_ended", 409


class HandoffNotAccepted(AppError):
    """Accept the handoff first: that fixes what it carries."""

    code, status = "handoff_not_accepted", 409


class HandoffTooDeep(AppError):
    """Work was handed on too often. Do it, or give back what you have."""

    code, status = "handoff_too_deep", 409


class RunActive(AppError):
    """Another run of this session has not ended; it takes one at a time."""

    code, status = "run_active", 409


class RunKeyTaken(AppError):
    """The session has a run of this key, made with another plan."""

    code, status = "run_key_taken", 409


class WrongState(AppError):
    """This cannot be done in the state that it is in."""

    code, status = "wrong_state", 409


class PlanConflict(AppError):
    """The plan has changed since the version you have. Read it and try again."""

    code, status = "plan_conflict", 409


class ResultTooLarge(FieldError):
    """A step's result, or what is to become one, is larger than the limit."""

    code, status = "result_too_large", 413

    def __init__(self, path: str, size: int, limit: int) -> None:
        super().__init__(
            path,
            "result_too_large",
            f"has {size} bytes; the limit is {limit}. "
            "Store it as an artifact and give its id.",
        )
        self.extra["limit_bytes"] = limit


class PlanTooLarge(AppError):
    """A plan may not have that many steps."""

    code, status = "plan_too_large", 413


class SignalIdReused(AppError):
    """A signal with this id was sent already, with another payload."""

    code, status = "signal_id_reused", 422


class EffectUnknown(AppError):
    """Whether this effect has happened is not known: again might be twice."""

    code, status = "effect_unknown", 409


class EffectLost(AppError):
    """Another has begun this effect since: your token is not the current one."""

    code, status = "effect_lost", 409


class ResultDiffers(AppError):
    """This has been completed already, with another result. That one stays."""

    code, status = "already_finished", 409


class LeaseLost(AppError):
    """This lease token is not the step's current one."""

    code, status = "lease_lost", 409


class SessionBusy(AppError):
    """A child run may not be its own ancestor."""

    code, status = "run_cycle", 422
