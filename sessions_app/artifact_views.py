"""Pages of artifacts, and the links that need no sign-in."""

from django.http import HttpRequest, HttpResponseBase
from django.views.decorators.http import require_safe

from agentstate.api.errors import problem_http
from agentstate.errors import AppError
from sessions_app.artifacts.links import artifact_of
from sessions_app.artifacts.serving import content_response


@require_safe
def linked_artifact(request: HttpRequest, token: str) -> HttpResponseBase:
    """The bytes behind a link that this server has signed."""
    try:
        return content_response(request, artifact_of(token))
    except AppError as exc:
        return problem_http(exc)
