"""System checks: mistakes in a deployment that are better heard at start."""

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register


@register(Tags.security)
def check_debug_hosts(**kwargs: Any) -> list[CheckMessage]:
    if settings.DEBUG and "*" in settings.ALLOWED_HOSTS:
        return [
            Error(
                "AGENTSTATE_DEBUG is on while every host name is accepted.",
                hint="Debug pages show settings. Turn it off, or name the hosts.",
                id="agentstate.E001",
            )
        ]
    return []


@register(Tags.database)
def check_pool_is_used(**kwargs: Any) -> list[CheckMessage]:
    if settings.DATABASES["default"].get("CONN_MAX_AGE"):
        return [
            Error(
                "CONN_MAX_AGE is set together with the connection pool.",
                hint="Drop conn_max_age from DATABASE_URL; the pool keeps connections.",
                id="agentstate.E002",
            )
        ]
    return []


LOOPBACK = {"localhost", "127.0.0.1", "::1"}


@register(Tags.security)
def check_single_sign_on(**kwargs: Any) -> list[CheckMessage]:
    if not settings.OIDC_ISSUER:
        return []
    issuer = urlsplit(settings.OIDC_ISSUER)
    found: list[CheckMessage] = []
    if issuer.scheme != "https" and issuer.hostname not in LOOPBACK:
        found.append(
            Error(
                "AGENTSTATE_OIDC_ISSUER is not an https address.",
                hint="Whoever is between could sign in as anybody.",
                id="agentstate.E003",
            )
        )
    if not settings.OIDC_CLIENT_ID:
        found.append(
            Error(
                "AGENTSTATE_OIDC_ISSUER is set without AGENTSTATE_OIDC_CLIENT_ID.",
                hint="The provider gives one when this server is registered there.",
                id="agentstate.E004",
            )
        )
    if "openid" not in settings.OIDC_SCOPES.split():
        found.append(
            Error(
                "AGENTSTATE_OIDC_SCOPES lacks openid.",
                hint="Without it the provider does not say who signed in.",
                id="agentstate.E005",
            )
        )
    return found


@register(Tags.security, deploy=True)
def check_secret_is_kept(**kwargs: Any) -> list[CheckMessage]:
    if not settings.SECRET_KEY_IS_KEPT:
        return [
            Warning(
                "The secret key is made anew at every start.",
                hint="Set AGENTSTATE_SECRET_KEY or AGENTSTATE_SECRET_KEY_FILE.",
                id="agentstate.W001",
            )
        ]
    return []
