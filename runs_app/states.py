"""States of runs and steps, and the one table of moves between them.

The SQL functions make the moves of the hot calls; `projection.fold` holds every move
in a log against these tables, and so does the tests' machine.
"""

from django.db import models


class RunState(models.TextChoices):
    QUEUED = "queued"  # nothing of it has been started
    RUNNING = "running"  # a step is in progress, or could be claimed
    WAITING = "waiting"  # all that is left waits: approval, timer, signal, a person
    PAUSED = "paused"  # nothing is handed out until it is resumed
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLING = "cancelling"  # steps in progress or child runs have yet to end
    CANCELLED = "cancelled"


class StepState(models.TextChoices):
    PENDING = "pending"  # waits for other steps, or to be claimed
    IN_PROGRESS = "in_progress"  # a worker holds its lease
    WAITING = "waiting"  # see WaitKind
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"
    CANCELLED = "cancelled"
    IN_DOUBT = "in_doubt"  # an attempt of a `once` step ended without a word


class WaitKind(models.TextChoices):
    APPROVAL = "approval"  # a person approves or rejects
    TIMER = "timer"  # run_after, sleep, a delayed release
    RETRY = "retry"  # the backoff after a failure
    SIGNAL = "signal"
    HANDOFF = "handoff"  # another agent's result
    HOLD = "hold"  # retries ran out; a person decides


class Effect(models.TextChoices):
    """What an attempt that ended without a word means for the next one."""

    NONE = "none"  # free to run again
    IDEMPOTENT = "idempotent"  # run again with the same idempotency key
    ONCE = "once"  # in doubt until an agent or a person settles it


class SecondRun(models.TextChoices):
    """What a new run means while another of its session has not ended."""

    REJECT = "reject"
    ENQUEUE = "enqueue"
    CANCEL_PREVIOUS = "cancel_previous"
    PARALLEL = "parallel"


R, S = RunState, StepState

RUN_ENDED = frozenset({R.SUCCEEDED, R.FAILED, R.CANCELLED})
RUN_OPEN = (R.QUEUED, R.RUNNING, R.WAITING, R.PAUSED, R.CANCELLING)
STEP_ENDED = frozenset({S.DONE, S.FAILED, S.SKIPPED, S.CANCELLED})

_LIVE = {R.RUNNING, R.WAITING, R.PAUSED, R.CANCELLING}
RUN_MOVES: dict[RunState, set[RunState]] = {
    R.QUEUED: {*_LIVE, R.SUCCEEDED, R.FAILED, R.CANCELLED},
    R.RUNNING: {R.WAITING, R.PAUSED, R.CANCELLING, *RUN_ENDED},
    R.WAITING: {R.RUNNING, R.PAUSED, R.CANCELLING, *RUN_ENDED},
    R.PAUSED: {R.QUEUED, R.RUNNING, R.WAITING, R.CANCELLING, *RUN_ENDED},
    R.CANCELLING: {R.CANCELLED},
    R.SUCCEEDED: set(),
    R.FAILED: {R.RUNNING},  # retried by a person
    R.CANCELLED: set(),
}

STEP_MOVES: dict[StepState, set[StepState]] = {
    # To done without a worker: a sleep that is over, a signal that was there before.
    S.PENDING: {S.IN_PROGRESS, S.WAITING, S.DONE, S.FAILED, S.SKIPPED, S.CANCELLED},
    S.IN_PROGRESS: {
        S.PENDING,  # lease lost, released, or a retry without delay
        S.WAITING,
        S.DONE,
        S.FAILED,
        S.CANCELLED,
        S.IN_DOUBT,
    },
    S.WAITING: {S.PENDING, S.DONE, S.FAILED, S.SKIPPED, S.CANCELLED},
    S.IN_DOUBT: {S.PENDING, S.DONE, S.FAILED, S.SKIPPED, S.CANCELLED},
    S.DONE: set(),
    S.FAILED: {S.PENDING},  # with its run, when that is retried
    S.SKIPPED: set(),
    S.CANCELLED: {S.PENDING},  # the same
}


def may_move_run(old: str, new: str) -> bool:
    return RunState(new) in RUN_MOVES[RunState(old)]


def may_move_step(old: str, new: str) -> bool:
    return StepState(new) in STEP_MOVES[StepState(old)]
