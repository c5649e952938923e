"""What a live connection goes on being allowed by: a key, or a person's sign-in.

A connection is checked when it opens and again while it lasts, many at a time, so that
a revoked key, a signed-out person and a removed member stop hearing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.models import User
from django.http import Http404, HttpRequest
from django.http.request import split_domain_port, validate_host

from access_app.callers import identify
from access_app.roles import Right, Visit, find_visit
from agentstate.errors import AppError


@dataclass(frozen=True)
class KeyCredential:
    """An API key, by its text."""

    text: str

    def is_good(self) -> bool:
        try:
            identify(self.text)
        except AppError:
            return False
        return True

    def __repr__(self) -> str:
        return "KeyCredential(…)"


@dataclass(frozen=True)
class PersonCredential:
    """A signed-in person in a project, with the rights they had when they came."""

    session_key: str
    project_slug: str
    rights: frozenset[Right]

    def is_good(self) -> bool:
        try:
            return visit_by_cookie(self.session_key, self.project_slug).rights == (
                self.rights
            )
        except Http404:
            return False

    def __repr__(self) -> str:
        return f"PersonCredential({self.project_slug})"


type Credential = KeyCredential | PersonCredential


def good_ones(credentials: Iterable[Credential]) -> set[Credential]:
    return {credential for credential in credentials if credential.is_good()}


def visit_by_cookie(session_key: str, slug: str) -> Visit:
    """Who the session cookie names, in the project of `slug`. Raises Http404."""
    user = user_by_cookie(session_key)
    if user is None:
        raise Http404
    return find_visit(user, slug)


def user_by_cookie(session_key: str) -> User | None:
    request = HttpRequest()
    store: Any = import_module(settings.SESSION_ENGINE).SessionStore
    request.session = store(session_key)
    user = get_user(request)
    return user if isinstance(user, User) and user.is_active else None


class HandshakeRefused(Exception):
    """A socket that is refused before it is accepted; the message is for the log."""


@dataclass(frozen=True)
class Handshake:
    """What a socket's first request says, once it is known to be one of ours.

    `session_key` is None where the cookie must not count: without an Origin nobody
    vouches that the page that connects is ours. `key_text` came as a subprotocol.
    """

    session_key: str | None
    key_text: str | None
    subprotocol: str | None


PROTOCOL = "agentstate.v1"
KEY_PROTOCOL = "agentstate.key."


def read_handshake(scope: dict[str, Any]) -> Handshake:
    """Check Host and Origin as HTTP's are. Raises HandshakeRefused.

    Nothing may stand in the query: a key would end up in logs.
    """
    headers = {
        name.lower(): value.decode("latin-1") for name, value in scope["headers"]
    }
    host = headers.get(b"host", "")
    domain, _ = split_domain_port(host)
    if not domain or not validate_host(domain, settings.ALLOWED_HOSTS):
        raise HandshakeRefused("host")
    if scope.get("query_string"):
        raise HandshakeRefused("query")
    origin = headers.get(b"origin")
    if origin is not None and not _is_ours(origin, host):
        raise HandshakeRefused("origin")
    offered = scope.get("subprotocols") or []
    keys = [p.removeprefix(KEY_PROTOCOL) for p in offered if p.startswith(KEY_PROTOCOL)]
    return Handshake(
        session_key=_cookie(headers) if origin is not None else None,
        key_text=keys[0] if keys else None,
        subprotocol=PROTOCOL if PROTOCOL in offered else None,
    )


def _is_ours(origin: str, host: str) -> bool:
    if origin in settings.CSRF_TRUSTED_ORIGINS:
        return True
    parts = urlsplit(origin)
    scheme = "https" if settings.HTTPS else "http"
    return parts.scheme == scheme and parts.netloc.lower() == host.lower()


def _cookie(headers: dict[bytes, str]) -> str | None:
    for part in headers.get(b"cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == settings.SESSION_COOKIE_NAME:
            return value or None
    return None
