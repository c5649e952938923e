"""What can go wrong while a context is made or a log is compacted."""

from agentstate.errors import AppError, ServiceUnavailable


class BudgetTooSmall(AppError):
    """What must be in the context does not fit into the budget."""

    code, status = "budget_too_small", 422


class SeqNotShown(AppError):
    """There is no message or tool call of this number to keep."""

    code, status = "seq_not_found", 422


class TokenizerUnavailable(ServiceUnavailable):
    """The tokenizer that is set cannot be loaded. Look at AGENTSTATE_TOKENIZER."""

    code = "tokenizer_unavailable"
