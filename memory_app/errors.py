"""What memory_app refuses, each with its stable code."""

from agentstate.errors import AppError, NotFound, ServiceUnavailable


class FactNotFound(NotFound):
    """There is no such fact in this project."""

    code = "fact_not_found"


class FactConflict(AppError):
    """The fact has changed since the version you have. Read it and try again."""

    code, status = "version_conflict", 409


class PreconditionRequired(AppError):
    """Say which version you change: If-Match, or `expected_version` in the body."""

    code, status = "precondition_required", 428


class BadMove(AppError):
    """A fact in this status cannot be moved so."""

    code, status = "bad_move", 409


class FactExists(AppError):
    """The subject has this fact already, as another entry."""

    code, status = "fact_exists", 409


class SubjectForgotten(AppError):
    """What this would repeat was forgotten, and is not learnt again from old talk."""

    code, status = "forgotten", 409


class PromotionNotFound(NotFound):
    """There is no such promotion in this project."""

    code = "promotion_not_found"


class NoSubject(AppError):
    """The session names no subject, so nothing can be remembered about one."""

    code, status = "no_subject", 422


class EmbedderFailed(ServiceUnavailable):
    """The embedder did not give a usable vector."""

    code = "embedder_failed"


class ExtractorFailed(ServiceUnavailable):
    """The extractor did not give a usable answer."""

    code = "extractor_failed"
