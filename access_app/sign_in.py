"""Signing in with Django's accounts, with few tries for those who guess.

Tries are counted in Redis, for the name and for the address. Unlike the limit of API
keys this one fails closed: while Redis is away nobody signs in, since an uncounted
password form is a guessing machine. Whoever is signed in stays so.
"""

import hashlib
import logging
from functools import cache

import redis
from django.conf import settings
from django.contrib.auth import authenticate
from django.contrib.auth.models import User
from django.http import HttpRequest
from redis.backoff import NoBackoff
from redis.commands.core import Script
from redis.retry import Retry

from agentstate.errors import AppError, ServiceUnavailable

logger = logging.getLogger(__name__)

WINDOW_SECONDS = 900
TRIES_FOR_NAME = 10
TRIES_FROM_ADDRESS = 100

# Counts one try for each key and returns the counts; the first try begins the window.
COUNT = """
local counts = {}
for i, key in ipairs(KEYS) do
  counts[i] = redis.call('INCR', key)
  if counts[i] == 1 then redis.call('EXPIRE', key, ARGV[1]) end
end
return counts
"""


class WrongPassword(AppError):
    """This name and password do not belong together."""

    code, status = "wrong_password", 403


class TooManyTries(AppError):
    """Too many tries. Wait a quarter of an hour, then try again."""

    code, status = "too_many_tries", 429


class SignInUnavailable(ServiceUnavailable):
    """Signing in is not possible for a moment. Try again shortly."""

    code = "sign_in_unavailable"


def check_password(request: HttpRequest, name: str, password: str) -> User:
    """Return the account. Raises WrongPassword, TooManyTries, SignInUnavailable."""
    keys = _keys(request, name)
    _count_try(keys)
    user = authenticate(request, username=name, password=password)
    if not isinstance(user, User):
        raise WrongPassword
    _forget_tries(keys[0])
    return user


def count_address(request: HttpRequest) -> None:
    """Count a try of one whose name is not known yet. TooManyTries and the others."""
    _count_try([_address_key(request)])


def _keys(request: HttpRequest, name: str) -> list[str]:
    # Hashed: a name is no secret, but people type their passwords into this field.
    digest = hashlib.sha256(name.strip().lower().encode()).hexdigest()
    return [f"agentstate:sign-in:name:{digest}", _address_key(request)]


def _address_key(request: HttpRequest) -> str:
    return f"agentstate:sign-in:from:{request.META.get('REMOTE_ADDR', '')}"


def _count_try(keys: list[str]) -> None:
    """Count for each key; the address is the last of them."""
    try:
        *for_name, from_address = count_script()(keys=keys, args=[WINDOW_SECONDS])
    except redis.RedisError as exc:
        logger.warning("sign-in refused: Redis is away")
        raise SignInUnavailable from exc
    if any(n > TRIES_FOR_NAME for n in for_name) or from_address > TRIES_FROM_ADDRESS:
        raise TooManyTries


def _forget_tries(key: str) -> None:
    try:
        count_script().registered_client.delete(key)
    except redis.RedisError:
        logger.warning("sign-in tries not forgotten: Redis is away")


@cache
def count_script() -> Script:
    client = redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=settings.REDIS_TIMEOUT,
        socket_connect_timeout=settings.REDIS_TIMEOUT,
        retry=Retry(NoBackoff(), 0),
    )
    return client.register_script(COUNT)
