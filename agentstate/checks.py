"""System checks: mistakes in a deployment that are better heard at start."""

from typing import Any

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
