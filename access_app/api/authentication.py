"""From a request's headers to its Caller."""

from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from access_app.callers import Caller, identify
from access_app.errors import Unauthenticated

CHALLENGE = 'Bearer realm="agentstate"'


class ApiKeyAuth(BaseAuthentication):
    """`Authorization: Bearer KEY`, or `X-API-Key: KEY` where a proxy takes the first.

    There is no user behind a key: `request.user` is None, `request.auth` the Caller.
    """

    def authenticate(self, request: Request) -> tuple[None, Caller] | None:
        text = key_text_in(request)
        return None if text is None else (None, identify(text))

    def authenticate_header(self, request: Request) -> str:
        return CHALLENGE


def key_text_in(request: Request) -> str | None:
    """Return the text of the key the request carries; None if it carries none."""
    authorization = str(request.META.get("HTTP_AUTHORIZATION", ""))
    if authorization:
        scheme, _, text = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated
        return text.strip()
    text = str(request.META.get("HTTP_X_API_KEY", ""))
    return text.strip() or None
