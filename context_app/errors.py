"""What can go wrong while a context is made or a log is compacted."""

from agentstate.errors import AppError, NotFound, ServiceUnavailable


class BudgetTooSmall(AppError):
    """What must be in the context does not fit into the budget."""

    code, status = "budget_too_small", 422


class BundleTooSmall(BudgetTooSmall):
    """The task of the handoff does not fit into the budget of what it carries."""


class SeqNotShown(AppError):
    """There is no message or tool call of this number to keep."""

    code, status = "seq_not_found", 422


class NothingToCompact(AppError):
    """There is nothing to summarise: the rest is kept, or under a summary already."""

    code, status = "nothing_to_compact", 409


class SummaryLoses(AppError):
    """The summary does not tell what it must. Nothing was changed.

    Put it in, name the events in `keep`, or send `force` if the loss is meant.
    """

    code, status = "summary_loses", 409


class CompactedMeanwhile(AppError):
    """Another compaction was made or undone meanwhile. Nothing was changed."""

    code, status = "compacted_meanwhile", 409


class CompactionNotFound(NotFound):
    """There is no such compaction in force."""

    code = "compaction_not_found"


class CompactionNotLast(AppError):
    """Only the newest compaction can be undone; those before it, after that."""

    code, status = "compaction_not_last", 409


class TokenizerUnavailable(ServiceUnavailable):
    """The tokenizer that is set cannot be loaded. Look at AGENTSTATE_TOKENIZER."""

    code = "tokenizer_unavailable"


class SummariserBusy(AppError):
    """Too many summaries are being made just now. Nothing was changed; try again."""

    code, status = "summariser_busy", 503

    def __init__(self) -> None:
        super().__init__(headers={"Retry-After": "2"})
